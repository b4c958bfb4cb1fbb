"""How acceptance code walks, told from what the code does: no engine's class, kernel or file is named in here.

``slices`` cuts functions out of a file, ``candidates`` (by ``shapes``) keeps those that may accept, ``reading`` turns
one through libcst into the small tree of ``ir``, ``machine`` runs it over symbolic ``terms`` with an ``oracle`` for
every comparison, ``walks``, ``trees`` and ``vectorised`` read the walk off the runs, ``flags`` tells which compile-time
parameter turns it on. ``facts`` bundles this per file: it depends on the file's bytes alone. ``callers``, ``roles``,
``dispatchers`` and ``verifiers`` join the files: who launches what, between which tensors, under which settings.
"""
