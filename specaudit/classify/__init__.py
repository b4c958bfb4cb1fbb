"""How acceptance code walks, told from what the code does: no engine's class, kernel or file is named in here.

``slices`` cuts candidate functions out of a file, ``ir`` turns one (through libcst) into a small tree, ``machine``
runs it over symbolic ``terms`` with an ``oracle`` for every comparison, ``walks`` reads the walk off the runs,
``vectorised`` reads acceptance that has no loop, ``facts`` bundles this per file (it depends on the file's bytes
alone), and ``callers``, ``roles`` and ``verifiers`` join the files: who launches what, between which tensors.
"""
