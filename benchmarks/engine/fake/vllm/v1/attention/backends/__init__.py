"""See the package."""

from types import SimpleNamespace

fa_utils = SimpleNamespace(flash_attn_varlen_func=None)
flash_attn = SimpleNamespace(
    flash_attn_varlen_func=None,
    FlashAttentionBackend=SimpleNamespace(),
    FlashAttentionMetadataBuilder=SimpleNamespace(),
)
