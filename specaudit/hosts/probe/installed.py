"""Finds engines on a module search path, without importing anything. (In the making; folder, local and SSH hosts share it.)

Planned: ``find(search_path, engines) -> list[dict]`` with keys engine, version, root, source (dist | editable), info (the
dist-info folder or ""), notes (list of [what, why]: shadowed dist-info, second installation); ``record(info, engine)``;
``environment(search_path) -> dict`` (python, torch, cuda, triton, platform). Python 3.8, stdlib only.
"""
