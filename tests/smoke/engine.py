"""A stand-in for vLLM with its interface: tokens follow from the prompt, drafts are accepted by rule."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''
"""Stands in for the engine."""
import os, sys, time, types
from types import SimpleNamespace as Bag

__version__ = "0.0.1"


class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)


def reference(prompt, tokens):
    return [(sum(prompt) * 31 + 7 * i) % 97 for i in range(tokens)]


class LLM:
    def __init__(self, model, speculative_config=None, **values):
        print("starting", model, values, flush=True)
        behaviour = os.environ.get("FAKE_ENGINE", "")
        if speculative_config and behaviour == "crash":
            os.abort()
        if speculative_config and behaviour == "fails":
            raise ValueError("no such drafter")
        if speculative_config and behaviour == "hang":
            import subprocess
            subprocess.Popen(["sleep", os.environ["FAKE_ENGINE_HANGS"]])
            time.sleep(1234)
        if behaviour == "slow":
            time.sleep(4)
        self.speculative = speculative_config
        self.k = (speculative_config or {}).get("num_speculative_tokens", 0)
        self.counts = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        self.positions = [0] * self.k
        self.behaviour = behaviour
        self.llm_engine = Bag(step=lambda: time.sleep(0.0005))

    def generate(self, prompts, parameters, use_tqdm=False):
        assert parameters.ignore_eos and not parameters.detokenize
        outputs = []
        for prompt in prompts:
            ids = reference(prompt["prompt_token_ids"], parameters.max_tokens)
            if self.k:
                if self.behaviour == "wrong":
                    ids[5] += 1
                left = parameters.max_tokens - 1
                while left > 0:
                    accepted = 0 if self.behaviour == "rejects" else min(2, self.k, left - 1)
                    self.counts["drafts"] += 1
                    self.counts["draft_tokens"] += self.k
                    self.counts["accepted_tokens"] += accepted
                    for i in range(accepted):
                        self.positions[i] += 1
                    left -= 1 + accepted
                    self.llm_engine.step()
            else:
                for _ in range(parameters.max_tokens):
                    self.llm_engine.step()
            logprobs = None
            if parameters.logprobs:
                logprobs = [{i: Bag(logprob=-0.1), i + 1: Bag(logprob=-0.1 - 0.01 * at)} for at, i in enumerate(ids)]
            outputs.append(Bag(outputs=[Bag(token_ids=ids, logprobs=logprobs)]))
        return outputs

    def get_metrics(self):
        found = [Bag(name=f"vllm:spec_decode_num_{key}", value=value) for key, value in self.counts.items()]
        found.append(Bag(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=list(self.positions)))
        return found
'''


TORCH = '''
"""Stands in for torch: one GPU."""
__version__ = "0.0.1"


class version:
    cuda = "13.0"


class cuda:
    device_count = staticmethod(lambda: 1)
    get_device_capability = staticmethod(lambda number=0: (9, 0))
    get_device_name = staticmethod(lambda number=0: "stand-in")
    get_arch_list = staticmethod(lambda: ["sm_80", "sm_90", "sm_100"])
'''


def install(folder: Path) -> Path:
    """Puts the stand-in into a folder, where ``dir:`` finds it."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm/__init__.py").write_text(SOURCE)
    (folder / "torch.py").write_text(TORCH)  # importing the real one would take most of a test's time
    return folder
