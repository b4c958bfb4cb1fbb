"""Which speculative options the chosen path honours, ignores or overrides."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.engines import index_of, replaced

from specaudit.classify.acting import reads_of
from specaudit.classify.audit import Reading
from specaudit.classify.refusals import Refusals
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.model import Audit, OptionVerdict

Audited = Callable[[str], Audit]
Read = Callable[[str], Reading]
_CALLED = {"append", "warning"}


def verdict(found: Audit, name: str, method: str, value: str = "", runner: str = "") -> OptionVerdict:
    fitting = [o for o in found.options if (o.name, o.value) == (name, value)]
    labels = {runner} if runner else {r.runner for r in found.runners if r.method == method and r.default}
    (one,) = (o for o in fitting if o.runner in labels and (not o.method or method in o.method.split(", ")))
    return one


def test_a_value_that_the_configuration_takes_and_the_path_ignores(audited: Audited) -> None:
    newest, older = audited("0.33.0"), audited("0.20.1")
    block = verdict(newest, "rejection_sample_method", "suffix", "block")
    assert (block.status, block.runner) == ("ignored", "v1")
    assert "does not ask for this value" in block.reason
    assert verdict(newest, "rejection_sample_method", "eagle3", "block").status == "honoured"
    assert verdict(newest, "rejection_sample_method", "suffix", "synthetic").status == "honoured"
    for value in ("strict", "probabilistic"):
        assert verdict(older, "rejection_sample_method", "eagle3", value).status == "ignored"


def test_an_option_that_only_the_other_generation_reads(audited: Audited) -> None:
    found = audited("0.9.2")
    by_runner = {o.runner: o.status for o in found.options if o.name == "disable_by_batch_size"}
    assert by_runner == {"v0": "honoured", "v1": "ignored"}
    assert {o.status for o in found.options if o.name == "acceptance_method" and o.runner == "v1"} == {"ignored"}


def test_a_default_that_is_all_that_a_path_leaves_is_honoured(audited: Audited) -> None:
    found = audited("0.24.0")  # V1 asks for "standard", V2 for every other value
    for runner in ("v1", "v2"):
        assert verdict(found, "rejection_sample_method", "eagle3", "standard", runner).status == "honoured"


def test_the_value_that_a_place_leaves_for_its_last_branch_is_honoured(audited: Audited) -> None:
    found = audited("0.18.1")  # V2 asks for "strict", and there is "probabilistic" alone beside that
    for value in ("strict", "probabilistic"):
        assert verdict(found, "rejection_sample_method", "eagle3", value, runner="v2").status == "honoured"


@pytest.mark.parametrize(
    "name", ["kv_cache_dtype", "moe_backend", "attention_backend", "use_local_argmax_reduction", "quantization"]
)
def test_a_runner_is_judged_with_the_methods_that_do_not_take_it_by_default_too(audited: Audited, name: str) -> None:
    found = audited("0.33.0")  # where none of these methods takes V1 by default
    for method in ("draft_model", "eagle", "eagle3", "mtp", "dflash"):
        assert verdict(found, name, method, runner="v1").status == "honoured"
    for method in ("suffix", "ngram"):
        assert verdict(found, name, method, runner="v1").status == "ignored"


def test_a_class_of_other_drafts_in_a_shared_file_is_not_on_the_path(audited: Audited) -> None:
    found = audited("0.33.0")  # one file has the base of every draft, and that of those with a model
    for name in ("use_local_argmax_reduction", "draft_sample_method"):
        for method, status in {"eagle3": "honoured", "ngram": "ignored", "ngram_gpu": "ignored"}.items():
            assert verdict(found, name, method, runner="v2").status == status


def test_a_function_beside_other_drafts_is_on_the_path_of_those_that_import_it(audited: Audited) -> None:
    found = audited("0.33.0")  # dflash and dspark import other functions of the file that applies these
    status = {"eagle3": "honoured", "mtp": "honoured", "draft_model": "ignored", "ngram": "ignored"}
    own = {"moe_backend": "ignored", "attention_backend": "honoured"}  # the latter is read beside them, too
    for name, others in own.items():
        for method, expected in {**status, "dflash": others, "dspark": others}.items():
            assert verdict(found, name, method, runner="v2").status == expected


def test_every_method_has_one_verdict_on_every_option_for_every_runner_that_it_can_take(audited: Audited) -> None:
    for version in ("0.33.0", "0.20.1", "0.9.2"):
        found = audited(version)
        options = {(o.name, o.value) for o in found.options if not o.value}
        for method, runner in {(r.method, r.runner) for r in found.runners}:
            for name, value in options:
                verdict(found, name, method, value, runner)


def test_the_evidence_of_methods_that_agree_holds_for_each_of_them(audited: Audited) -> None:
    found = audited("0.33.0")
    methods = ("eagle", "mtp", "extract_hidden_states", "ngram", "ngram_gpu")
    by_line = {m: verdict(found, "prompt_lookup_max", m, runner="v1").evidence[1] for m in methods}
    assert by_line["eagle"] == by_line["mtp"] != by_line["extract_hidden_states"]
    assert by_line["ngram"].path.endswith("/ngram_proposer.py")
    assert by_line["ngram_gpu"].path.endswith("/ngram_proposer_gpu.py")
    one = [o for o in audited("0.12.0").options if (o.name, o.runner) == ("num_speculative_tokens", "v1")]
    assert [o.method for o in one] == [""]  # more evidence of some of them makes no entry of their own


def test_reads_that_only_refuse_or_tell_are_no_use() -> None:
    def reads(body: str) -> tuple[set[str], set[str]]:
        found = reads_of(ast.parse("def f(spec, errors):\n" + textwrap.indent(textwrap.dedent(body), "    ")))
        return {name for _, name in found.acting} - _CALLED, {name for _, name in found.checking} - _CALLED

    refuses = """
        if spec.a: raise ValueError(spec.b)
        assert spec.c, spec.d
        if spec.e:
            logger.warning("it is %s", spec.f)
        if spec.g: errors.append(f"{spec.h} is not supported")
        checks = ((spec.i > 1, "one is all"), (spec.j, f"{spec.k} is too much"))
        if spec.l:
            draft = spec.draft
            if draft is None: raise ValueError
    """
    assert reads(refuses) == ({"draft"}, set("abcdefghijkl"))
    acts = """
        if spec.a: raise ValueError
        elif spec.b: act()
        if spec.c: return
        if spec.d: errors.append("name")
        pairs = ((spec.e, "name"), (spec.f, spec.g))
        act(spec.h, "two words", getattr(spec, "i"))
        if spec.j:
            kept = 1
            if spec.k: raise ValueError
        spec.l = 1
    """
    assert reads(acts) == (set("bcdefghij"), {"a", "k"})


def test_an_option_that_completing_the_configuration_sets(audited: Audited) -> None:
    found = audited("0.33.0")
    forced = verdict(found, "parallel_drafting", "dflash")
    assert forced.status == "overridden"
    assert "true" in forced.reason
    assert forced.evidence[1].text == "self.parallel_drafting = True"
    assert verdict(found, "parallel_drafting", "eagle3").status == "honoured"
    assert verdict(found, "prompt_lookup_max", "eagle3").status == "overridden"
    assert verdict(found, "prompt_lookup_max", "ngram").status == "honoured"


def test_an_option_of_another_method_is_ignored(audited: Audited) -> None:
    found = audited("0.33.0")
    assert verdict(found, "suffix_decoding_max_spec_factor", "eagle3").status == "ignored"
    assert verdict(found, "suffix_decoding_max_spec_factor", "suffix").status == "honoured"


def test_an_option_that_only_makes_an_object_matters_where_that_object_is_read(audited: Audited) -> None:
    name = "draft_tensor_parallel_size"  # makes a configuration that draft_model.py alone reads
    for method, status in {"eagle": "ignored", "dflash": "ignored", "draft_model": "honoured"}.items():
        assert verdict(audited("0.20.1"), name, method).status == status


def test_what_an_option_makes_matters_where_the_method_gets_to_what_reads_it(audited: Audited) -> None:
    for version in ("0.18.1", "0.28.0"):  # where no model is named, one is, and graphs are off, for one model of mtp
        for method, status in {"suffix": "ignored", "ngram_gpu": "ignored", "mtp": "honoured"}.items():
            assert verdict(audited(version), "model", method, runner="v1").status == status


def test_an_option_that_names_the_method_is_honoured(audited: Audited) -> None:
    for version, runner in (("0.33.0", "v2"), ("0.33.0", "v1"), ("0.18.1", "v1"), ("0.10.1", "v1")):
        told = verdict(audited(version), "model", "ngram", runner=runner)  # {"model": "ngram"} is all that it takes
        assert told.status == "honoured"
        assert told.evidence[1].text == 'self.method = "ngram"'


def test_what_is_declared_over_more_lines_is_read_as_on_one(audited: Audited) -> None:
    found = audited("0.10.1")  # two objects that the engine itself fills in, as it does others
    assert not {o.name for o in found.options} & {"target_parallel_config", "draft_parallel_config"}
    assert verdict(found, "draft_tensor_parallel_size", "eagle").status == "ignored"
    older = audited("0.9.2")
    for runner, status in {"v0": "honoured", "v1": "ignored"}.items():  # the worker of V0 takes the draft's number
        assert verdict(older, "draft_tensor_parallel_size", "eagle", runner=runner).status == status


def test_a_file_beside_other_proposers_is_read_on_their_path_alone(audited: Audited) -> None:
    found = audited("0.33.0")  # dspark/utils.py reads it, which a proposer of dflash imports, too
    name = "draft_tensor_parallel_size"
    for method, status in {"eagle3": "ignored", "dspark": "honoured", "dflash": "honoured"}.items():
        assert verdict(found, name, method).status == status
    backend = {m: verdict(audited("0.29.0"), "attention_backend", m).status for m in ("eagle3", "dflash")}
    assert backend == {"eagle3": "ignored", "dflash": "honoured"}


def test_an_option_that_is_only_checked_says_so(audited: Audited) -> None:
    found = verdict(audited("0.33.0"), "tensor_parallel_size", "eagle3")
    assert found.status == "ignored"
    assert "checked" in found.reason
    assert found.evidence[1].text == "if self.tensor_parallel_size is not None:"


def test_what_a_refusal_needs_is_kept_for_it_alone(audited: Audited) -> None:
    found = audited("0.33.0")  # the configuration keeps the draft's model to look at it before it refuses
    for method, status in {"eagle3": "honoured", "mtp": "honoured", "dflash": "ignored", "ngram": "ignored"}.items():
        assert verdict(found, "draft_lm_head_quantization", method, runner="v2").status == status
    assert "checked" in verdict(found, "draft_lm_head_quantization", "eagle3", runner="v1").reason


STATUS = {True: "honoured", False: "ignored"}


def test_a_read_that_a_method_never_gets_to_honours_nothing(audited: Audited) -> None:
    def told(version: str, name: str, runner: str = "v1") -> dict[str, str]:
        found = audited(version)
        methods = {r.method for r in found.runners if r.runner == runner}
        return {method: verdict(found, name, method, runner=runner).status for method in methods}

    for version in ("0.33.0", "0.20.1"):
        forward = {"draft_model", "eagle", "eagle3", "extract_hidden_states", "mtp", "dflash"}
        on_gpu = {*forward, "ngram_gpu"} - {"extract_hidden_states"}  # which refuses it
        for name, methods in {"enforce_eager": forward, "disable_padded_drafter_batch": on_gpu}.items():
            found = told(version, name)  # both are read in the runner's own file, below a test of the method
            assert len(found) > len(methods)
            assert found == {method: STATUS[method in methods] for method in found}
    for runner in ("v1", "v2"):
        for name in ("disable_eagle_block_drop", "disable_lookahead_block_hashes"):
            found = told("0.33.0", name, runner)  # behind `and`, behind `or`: in the same line as that test
            assert found == {method: STATUS[method in ("eagle", "eagle3", "mtp")] for method in found}


def test_a_read_for_another_runner_alone_honours_nothing(audited: Audited) -> None:
    newest, older = audited("0.33.0"), audited("0.24.0")
    name = "disable_padded_drafter_batch"  # read by what both runners use; in 0.33.0 only if V2 is not taken
    for method in ("eagle3", "mtp", "dflash"):
        assert verdict(newest, name, method, runner="v1").status == "honoured"
        assert verdict(newest, name, method, runner="v2").status == "ignored"
        assert verdict(older, name, method, runner="v2").status == "honoured"


def test_a_read_for_a_model_that_a_runner_refuses_honours_nothing(audited: Audited) -> None:
    found = audited("0.33.0")  # it is read for one draft model, with which V1 is never taken
    assert verdict(found, "xpress_topc", "dflash", runner="v2").status == "honoured"
    older = verdict(found, "xpress_topc", "dflash", runner="v1")
    assert (older.status, older.reason) == ("ignored", "it is checked, and nothing acts on it")


def test_an_option_that_is_refused_for_a_method_is_not_honoured(audited: Audited) -> None:
    found = audited("0.33.0")
    for name, only in {"index_share_for_mtp_iteration": "mtp", "use_heterogeneous_vocab": "draft_model"}.items():
        for method, runner in {(r.method, r.runner) for r in found.runners}:
            told = verdict(found, name, method, runner=runner)
            assert told.status == STATUS[method == only]
            assert ("refused for this method" in told.reason) == (method != only)
    refusing = verdict(found, "index_share_for_mtp_iteration", "ngram", runner="v2").evidence[-1]
    assert refusing.text == 'if self.method != "mtp" or self.draft_model_config is None:'
    topc = {m: verdict(found, "xpress_topc", m, runner="v2") for m in ("eagle", "mtp", "dspark", "ngram")}
    refused = {method for method, told in topc.items() if "refused for this method" in told.reason}
    assert refused == {"eagle", "mtp", "dspark"}  # where no model drafts, nothing asks
    for method in ("mtp", "dspark"):
        told = verdict(audited("0.29.0"), "enable_adaptive_verification", method, runner="v2")
        assert told.status == STATUS[method == "dspark"]


def test_what_the_check_of_a_runner_refuses_is_not_honoured_there(audited: Audited) -> None:
    found = audited("0.33.0")
    for method in ("suffix", "ngram", "eagle3", "dflash"):  # the first takes V1 by default, and could take no other
        told = verdict(found, "enable_adaptive_verification", method, runner="v1")
        assert (told.status, told.reason) == ("ignored", "it is checked, and refused for this method")
        assert told.evidence[-1].text == "self._validate_v1_model_runner()"
    assert verdict(found, "enable_adaptive_verification", "eagle3", runner="v2").status == "honoured"
    # V2, which they take by default, has none of these: for their sake V1 is taken
    assert verdict(found, "parallel_drafting", "eagle3", runner="v2").status == "honoured"
    assert verdict(found, "use_heterogeneous_vocab", "draft_model", runner="v2").status == "honoured"


@pytest.mark.parametrize(
    "around",
    [
        "for _ in self.draft_model_config.architectures or ():\n    {}",
        "try:\n    import flash_attn\nexcept ImportError:\n    {}",
        "try:\n    {}\nexcept ValueError:\n    pass",
    ],
)
def test_an_exception_that_need_not_come_refuses_nothing(release: Callable[[str], Path], around: str) -> None:
    path, name = "vllm/config/speculative.py", "disable_padded_drafter_batch"
    text = release("0.33.0").joinpath(path).read_text()
    before = "        if self.draft_lm_head_quantization is not None:\n"
    for body, refused in (("{}", True), (around, False)):
        refusal = textwrap.indent(body.format("raise ValueError('no')"), " " * 12)
        added = replaced(text, (before, f"        if self.{name}:\n{refusal}\n{before}"))
        engine = ENGINES["vllm"]
        reading = Reading(index_of(release("0.33.0"), "vllm", engine.wants, {path: added}), engine)
        assert (reading.refusing.at(name, ("true",), "eagle3", "v1") is not None) == refused
        traced = Refusals(reading.reader, reading.methods, reading.choice)
        with pytest.raises(ConfigurationError) if refused else nullcontext():
            traced.checked("eagle3", {name: "true"})


def test_where_there_is_nothing_else_to_set_nothing_is_refused(read: Read) -> None:
    refusing = read("0.33.0").refusing
    for values, found in ((("true", "false"), True), ((), False)):
        assert (refusing.at("index_share_for_mtp_iteration", values, "ngram", "v2") is not None) == found


def test_what_a_drafter_refuses_as_it_is_made_is_not_honoured(audited: Audited) -> None:
    newest, older = audited("0.33.0"), audited("0.20.1")
    sampling, padded = "draft_sample_method", "disable_padded_drafter_batch"
    for found, name, runner in ((newest, sampling, "v2"), (newest, padded, "v1"), (older, padded, "v1")):
        told = verdict(found, name, "extract_hidden_states", runner=runner)
        assert (told.status, told.reason) == ("ignored", "it is checked, and refused for this method")
        assert told.evidence[-1].path.endswith("extract_hidden_states.py")
        assert verdict(found, name, "eagle3", runner=runner).status == "honoured"
    count = verdict(newest, "num_speculative_tokens", "extract_hidden_states", runner="v2")
    assert count.status == "honoured"  # one value of it is refused, and not all


def test_an_option_is_followed_through_names_for_the_configuration(audited: Audited) -> None:
    found = audited("0.20.1")  # `if spec := spec_config:` in a backend of attention, whatever drafts
    for method in ("ngram", "medusa", "eagle3"):
        told = verdict(found, "speculative_token_tree", method, runner="v1")
        assert told.status == "honoured"
        assert told.evidence[1].text == "spec_token_tree = spec.speculative_token_tree"


def test_options_come_as_they_are_declared(audited: Audited) -> None:
    for runner in ("v1", "v2"):
        told = [option for option in audited("0.33.0").options if option.runner == runner]
        lines = [option.evidence[0].line for option in told if not option.value]
        assert lines == sorted(lines)
        at = [n for n, option in enumerate(told) if option.name == "draft_sample_method"]
        assert at == list(range(at[0], at[-1] + 1))
        assert list(dict.fromkeys(told[n].value for n in at)) == ["", "greedy", "probabilistic"]


def test_every_option_has_a_verdict_and_a_declaration(audited: Audited) -> None:
    found = audited("0.33.0")
    names = {o.name for o in found.options}
    assert {"num_speculative_tokens", "attention_backend", "draft_sample_method", "rejection_sample_method"} <= names
    for option in found.options:
        assert option.evidence, option
        assert option.status == "honoured" or option.reason
    assert verdict(found, "draft_sample_method", "eagle3").status == "honoured"
    assert verdict(found, "attention_backend", "suffix").status == "ignored"
