"""The probe: stdlib-only modules (Python 3.8 and newer) that look at a host from inside.

They run here, imported, for ``@local`` and folders, and on hosts, sent as one script by :mod:`specaudit.hosts.bundle`.
"""
