"""Walks and hashes an engine's ``.py`` files. (In the making; folder, local and SSH hosts share it.)

Planned: ``listing(root, package) -> (files: list[(path, sha256, size)], errors: list[(path, error)])``: follows symbolic
links, survives loops, dangling links, unreadable and oversized files. Python 3.8, stdlib only.
"""
