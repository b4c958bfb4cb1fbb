"""Formulas over settings: what is decided by what, and how few changes of settings make a formula true."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from specaudit.classify import conditions as c
from specaudit.classify import ways
from specaudit.model import Condition


def lit(option: str, value: str = "1", usual: bool | None = None, kind: str = "option") -> c.Lit:
    condition = Condition(option, kind, "==", value, c.words(option, "==", value))  # type: ignore[arg-type]
    return c.Lit(option, condition, True, usual)


A, B, C = (lit(name, usual=False) for name in "abc")


def formulas() -> st.SearchStrategy[c.Formula]:
    leaves = st.sampled_from([A, B, C, c.negate(A), c.negate(B), c.negate(C), True, False])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(c.conj), st.lists(inner, min_size=1, max_size=3).map(c.disj)
        ),
        max_leaves=8,
    )


def worlds() -> list[dict[str, str | None]]:
    return [dict(zip("abc", values, strict=True)) for values in product(("1", None), repeat=3)]


def decided(f: c.Formula, world: dict[str, str | None]) -> bool:
    found = c.given(f, world)
    assert isinstance(found, bool)
    return found


@generated(formulas())
def test_the_opposite_is_true_exactly_where_the_formula_is_not(f: c.Formula) -> None:
    for world in worlds():
        assert decided(c.negate(f), world) != decided(f, world)


@generated(formulas(), formulas())
def test_conjunction_and_disjunction_mean_what_they_say(f: c.Formula, g: c.Formula) -> None:
    for world in worlds():
        assert decided(c.conj((f, g)), world) == (decided(f, world) and decided(g, world))
        assert decided(c.disj((f, g)), world) == (decided(f, world) or decided(g, world))


@generated(formulas())
def test_alternatives_cover_the_formula_and_nothing_else(f: c.Formula) -> None:
    found = ways.alternatives(f)
    for world in worlds():
        held = any(all(decided(one, world) for one in way) for way in found)
        assert held == decided(f, world)


@generated(formulas())
def test_a_formula_is_satisfiable_where_some_settings_make_it_true(f: c.Formula) -> None:
    assert ways.satisfiable(f) == any(decided(f, world) for world in worlds())


@generated(formulas())
def test_deviations_are_changes_that_make_it_true(f: c.Formula) -> None:
    nothing = dict.fromkeys("abc")
    if decided(f, nothing):
        return
    for way in ways.deviations(f):
        changed = {**nothing, **{one.condition.option: "1" for one in way if one.condition and one.holds}}
        assert decided(f, changed)


M, N = (lit(name, kind="model") for name in "mn")


def of_models(inner: st.SearchStrategy[c.Formula]) -> st.SearchStrategy[c.Formula]:
    """Formulas that the model decides, too."""
    sides = st.tuples(st.sampled_from([M, N, c.negate(M)]), inner, inner)
    return sides.map(lambda s: c.disj((c.conj((s[0], s[1])), c.conj((c.negate(s[0]), s[2])))))


@generated(st.one_of(formulas(), of_models(formulas()), of_models(of_models(formulas()))))
def test_a_complete_way_is_enough_whatever_else_is_configured(f: c.Formula) -> None:
    found = [*ways.alternatives(c.usual(f)), *(() if c.usual(f) is True else ways.deviations(f))]
    every = [dict(zip("abcmn", values, strict=True)) for values in product(("1", None), repeat=5)]
    for way in found:
        told = ways.stated(ways.complete(f, way))
        assert set(ways.stated(way)) <= set(told)
        for world in every:
            if all(c.holds(condition, world[condition.option]) for condition in told):
                assert decided(f, world)


def test_a_complete_way_asks_nothing_of_a_model_that_decides_nothing() -> None:
    both = c.disj((c.conj((M, c.negate(A))), c.conj((c.negate(M), c.negate(A), c.negate(B)))))
    assert set(ways.complete(both, ())) == {c.negate(A), c.negate(B)}


def test_a_complete_way_asks_of_the_model_what_its_own_changes_make_it_decide() -> None:
    f = c.disj((c.conj((M, A)), c.conj((c.negate(M), c.negate(A)))))
    assert set(ways.complete(f, (A,))) == {A, M}


def test_a_value_decides_every_test_of_its_setting() -> None:
    is_set = c.Lit("a is set", Condition("a", "option", "is set", "", "a is set"), True, False)
    assert ways.fixed(c.disj((c.negate(is_set), B)), (A,)) == B
    assert ways.complete(c.conj((A, c.disj((c.negate(is_set), c.negate(B))))), (A,)) == (A, c.negate(B))


def test_what_stands_beside_a_choice_decides_it() -> None:
    """Else a test that only the running program knows would hide the setting beside it."""
    assert c.conj((A, c.disj((c.negate(A), B)))) == c.conj((A, B))
    assert c.disj((A, c.conj((c.negate(A), B)))) == c.disj((A, B))
    assert c.conj((A, c.disj((c.negate(A), c.negate(A))))) is False


def test_two_values_of_one_setting_exclude_each_other() -> None:
    assert c.conj((lit("method", "ngram"), lit("method", "eagle"))) is False
    assert not ways.satisfiable(c.conj((lit("method", "ngram"), c.disj((lit("method", "eagle"), False)))))


def test_what_holds_by_default_is_left_out_and_what_only_a_run_knows_stays() -> None:
    shape = c.Lit("batch.size > 1")
    f = c.conj((c.negate(A), shape))
    assert c.usual(f) == shape
    assert c.quiet(f) is False
    assert ways.stated((shape, A)) == (A.condition,)


@pytest.mark.parametrize(
    ("op", "value", "setting", "expected"),
    [
        ("==", "1", "1", True),
        ("!=", "1", None, True),
        ("is set", "", None, False),
        ("is not set", "", None, True),
        ("in", "a, b", "c, b", True),
        ("not in", "a, b", "c", True),
        ("in", "a, b", None, False),
        ("<=", "4", "3.5", True),
        (">", "4", "4", False),
        (">", "4", "many", None),
    ],
)
def test_a_condition_is_compared_with_a_setting(
    op: str, value: str, setting: str | None, expected: bool | None
) -> None:
    assert c.holds(Condition("x", "option", op, value, ""), setting) is expected  # type: ignore[arg-type]


def test_flags_come_first_and_nothing_is_said_twice() -> None:
    flag = lit("SOME_FLAG", "1", kind="env")
    is_set = c.Lit("SOME_FLAG", Condition("SOME_FLAG", "env", "is set", "", ""), True)
    assert [x.option for x in ways.stated((A, is_set, flag))] == ["SOME_FLAG", "a"]


def test_neither_on_nor_off_is_not_set() -> None:
    off, on = (c.negate(lit("SOME_FLAG", value, kind="env")) for value in ("0", "1"))
    assert isinstance(off, c.Lit)
    assert isinstance(on, c.Lit)
    assert [(x.option, x.op) for x in ways.stated((off, on))] == [("SOME_FLAG", "is not set")]
