"""What an answer must show beside the scores of its tokens. Each check returns what is wrong, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .figures import equal
from .requests import tokens_of

Requests = list[dict[str, Any]]
Check = Callable[[dict[str, Any], Requests], str]


def lengths_hold(answer: dict[str, Any], requests: Requests) -> str:
    """max_tokens is kept to the token."""
    for tokens, request in zip(tokens_of(answer), requests, strict=True):
        if "abort" not in request and len(tokens) != request["params"]["max_tokens"]:
            return f"{len(tokens)} tokens in place of {request['params']['max_tokens']}"
    return ""


def stops_at_model_length(length: int) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        for tokens, request in zip(tokens_of(answer), requests, strict=True):
            if len(tokens) + len(request["prompt"]) != length:
                return f"ended at {len(tokens) + len(request['prompt'])}, the model's length is {length}"
        return ""

    return check


def logprobs_fit(answer: dict[str, Any], requests: Requests) -> str:
    """Every emitted token is the best of its own row at T = 0: rows are those of the accepted path."""
    wrong = sum(own != best for output in answer["outputs"] for own, best, _ in output["logprobs"])
    count = sum(len(output["logprobs"]) for output in answer["outputs"])
    tokens = sum(len(output["tokens"]) for output in answer["outputs"])
    if count != tokens:
        return f"{count} log-probabilities for {tokens} tokens"
    return f"{wrong} of {count} tokens are not their row's best" if wrong else ""


def preempts(answer: dict[str, Any], requests: Requests) -> str:
    return lengths_hold(answer, requests) or ("" if answer["counters"]["preemptions"] else "nothing was preempted")


def accepts(answer: dict[str, Any], requests: Requests) -> str:
    counters = answer["counters"]
    return lengths_hold(answer, requests) or ("" if counters["accepted"] else "nothing was accepted")


def repeated(answer: dict[str, Any]) -> int:
    """How often the second half of the requests, the first again, seed and all, gave the same."""
    outputs = tokens_of(answer)
    half = len(outputs) // 2
    return equal(outputs[:half], outputs[half:])


def absent(words: list[list[int]]) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        if not words:
            return "no word to forbid: the case shows nothing"
        for tokens in tokens_of(answer):
            for word in words:
                if any(tokens[i : i + len(word)] == word for i in range(len(tokens))):
                    return f"{word} was emitted"
        return lengths_hold(answer, requests)

    return check


def stopped(answer: dict[str, Any], requests: Requests) -> str:
    """Ends at the stop token, which is the last one, and nothing follows it."""
    ended = 0
    for output, request in zip(answer["outputs"], requests, strict=True):
        stops = request["params"]["stop_token_ids"]
        places = [i for i, token in enumerate(output["tokens"]) if token in stops]
        if places and places[0] != len(output["tokens"]) - 1:
            return f"{len(output['tokens']) - 1 - places[0]} tokens after the stop token"
        ended += bool(places)
    return "" if ended else "no request met its stop token: the case shows nothing"


STOPS = ["return", "\n\n", "self"]


def stop_strings_hold(answer: dict[str, Any], requests: Requests) -> str:
    """The text ends before the stop string, and some request met one."""
    held = sum(any(stop in output["text"] for stop in STOPS) for output in answer["outputs"])
    if held:
        return f"{held} texts hold a stop string"
    ended = any(output["finish"] == "stop" for output in answer["outputs"])
    return "" if ended else "no request met a stop string: the case shows nothing"


def only_allowed(first: int, last: int) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        outside = sum(not first <= token < last for tokens in tokens_of(answer) for token in tokens)
        return f"{outside} tokens that were not allowed" if outside else lengths_hold(answer, requests)

    return check


def goes_on_for(count: int) -> Check:
    """No stop token among the first `count`: the engine forbids them there, it does not step over them."""

    def check(answer: dict[str, Any], requests: Requests) -> str:
        for tokens, request in zip(tokens_of(answer), requests, strict=True):
            stops = request["params"]["stop_token_ids"]
            places = [place for place, token in enumerate(tokens[:count]) if token in stops]
            if places or len(tokens) < count:
                where = places[0] if places else len(tokens)
                return f"a stop token at place {where}, {count} are the least"
        return ""

    return check


def matches(pattern: str) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        for output in answer["outputs"][: len(requests) // 2]:
            if output["finish"] == "stop" and not re.fullmatch(pattern, output["text"]):
                return f"{output['text'][:40]!r} does not match"
        return ""

    return check
