"""What both DDTree recipes share: the package that they install, the edits of the attention backend, the check."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from specaudit.errors import RecipeRefused
from specaudit.index import Index
from specaudit.patching.workspace import Workspace

PACKAGE = "vllm/specaudit_ddtree"
MODULE = PACKAGE.replace("/", ".")
BACKEND = "vllm/v1/attention/backends/flash_attn.py"
CONFIG = "vllm/config/vllm.py"
EXACT_NOTE = (
    'Its outputs part from the chain\'s at near ties, as those of two attention kernels do. "exact": true beside the '
    "budget makes attention round as the chain's does, so that outputs are the same (on 0.20.1 and 0.33.0 all were, in "
    "what was run). It needs FlashAttention 3, full CUDA graphs, a cache in bf16 or fp16 and heads of 128 (or of 64, "
    "with few query heads), and costs more with nodes x context."
)
#: Modules of the core that stay here: what kernels are tested against, and the Transformers oracle.
LEFT_OUT = ("reference.py", "attention_reference.py", "generate.py", "dflash.py")


def install_package(work: Workspace, runner: str) -> None:
    """Adds the core, what both runners share and one runner's part (`v1` or `v2`), as files of their own."""
    source = files("specaudit.ddtree")
    for folder in ("", "engine", runner):
        for file in sorted(source.joinpath(folder).iterdir(), key=lambda file: file.name):
            if file.name.endswith(".py") and file.name not in LEFT_OUT:
                work.add("/".join(part for part in (PACKAGE, folder, file.name) if part), file.read_bytes())


def expect(work: Workspace, signatures: Mapping[str, Mapping[str, str]]) -> None:
    """The installed package overrides and calls functions of the engine: they must take what it gives them.

    Args:
        signatures: per file, qualified names with the parameters that the package relies on, in order; more may follow.

    Raises:
        RecipeRefused: a function is missing or takes something else.
    """
    hint = "This release has another shape; the recipe was not written for it."
    for path, functions in signatures.items():
        outline = work.index.outline(path)
        for qualname, text in functions.items():
            definition, wanted = outline.definition(qualname), tuple(text.split())
            if definition is None:
                raise RecipeRefused(f"{path} has no {qualname}.", hint)
            if definition.params[: len(wanted)] != wanted:
                takes = f"({', '.join(definition.params)}), not ({', '.join(wanted)})"
                raise RecipeRefused(f"{path}: {qualname} takes {takes}.", hint)


def edit_attention(work: Workspace) -> None:
    """The FlashAttention backend: one field, its filling before the schedule is made, one branch."""
    backend = work.edit(BACKEND)
    backend.insert_after("FlashAttentionMetadata", "max_num_splits: int = 0", "ddtree: object | None = None")
    build = "FlashAttentionMetadataBuilder.build"
    backend.insert_after(
        build,
        "aot_schedule = self.aot_schedule and not fast_build and not envs.VLLM_BATCH_INVARIANT",
        f"""
        ddtree = getattr(self, "ddtree", None)
        if ddtree is not None:
            from {MODULE}.engine.context import plan

            ddtree = plan(ddtree, common_attn_metadata)
        if ddtree is not None:
            # A context part is scheduled; behind trees, the rest of a mixed batch is not.
            aot_schedule = aot_schedule and ddtree.scheduled
            if ddtree.scheduled:
                seq_lens, causal = ddtree.context_lens, False
        """,
    )
    backend.insert_before(build, "return attn_metadata", "attn_metadata.ddtree = ddtree")
    backend.insert_after(
        "FlashAttentionImpl.forward",
        "v_descale = layer._v_scale.expand(descale_shape)",
        f"""
        if attn_metadata.ddtree is not None:
            from {MODULE}.engine.context import forward as forward_trees

            descales = (q_descale, k_descale, v_descale)
            forward_trees(self, attn_metadata, query, key_cache, value_cache, output, descales, layer)
            return output
        """,
    )


def edit_configuration(work: Workspace, runner: str) -> None:
    """The switch: read, checked and turned into draft counts where the configuration settles them."""
    work.edit(CONFIG).insert_before(
        "VllmConfig.__post_init__",
        "self._set_max_num_scheduled_tokens()",
        f"""
        from {MODULE}.engine.settings import install as install_ddtree

        install_ddtree(self, "{runner}")
        """,
    )


def tree_verdict(after: Index) -> tuple[str, ...]:
    """What is wrong when the scan of the patched engine does not say: drafted, masked per request, walked."""
    from specaudit.scan import classify

    tree = classify(after.snapshot).tree
    if tree is None:
        return ("the scan of the patched engine gives no tree verdict",)
    wanted = {"drafting": "dynamic", "attention": "per-request", "verification": "tree-walk"}
    found = {name: getattr(tree, name).verdict for name in wanted}
    return tuple(
        f"the scan says {name} {found[name]}, not {want}" for name, want in wanted.items() if found[name] != want
    )
