"""Names of registered compiled operators, read from the strings of ``.so`` files. (In the making; shared, like files.py.)

Planned: ``names(root, packages) -> (list["namespace::name"], errors)``, mmap and one regular expression. Python 3.8, stdlib.
"""
