"""DDTree (arXiv:2604.12989): build, mask, walk and commit of draft trees, all on the GPU.

Imports torch, triton and the standard library only, so that the folder can be copied into an engine as it is.

layout.py     the tensors everything works on: Table, Tree, Walk, KVCaches, row starts
reference.py  the paper step by step in plain torch: what every kernel is tested against
kernels.py    the same functions, same signatures, as Triton kernels (table.py, build.py, stage.py, walk.py, commit.py)
launch.py     a compiled kernel launched again, without Triton's own cost on the host
attention.py  the tree part of attention (attention_kernels.py), context and tree together (paged_kernels.py);
              attention_reference.py beside them
generate.py   a Transformers target with a DFlash drafter (dflash.py), chain and tree: the oracle for acceptance
"""
