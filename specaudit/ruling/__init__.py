"""Known defects as data: rule documents, their evaluation over an :class:`specaudit.index.Index`, and reachability.

document   YAML text -> Node tree with line numbers, capped; nothing in it can run
rule       the data types of a rule
schema     Node -> Rule, every mistake with file and line
store      the packaged rules and the user's folders
shapes     the one seam to ast-grep
places     Subject -> the files, classes and functions it names, wherever they moved
relations  what a shape cannot say: joins of files, writers, inheritance, arguments, order, dataflow
evaluate   Rule x Index -> Finding
reach      Finding x configuration -> Finding, ``unreachable`` with the hop that rules it out
trials     a rule's examples and mutation checks
"""
