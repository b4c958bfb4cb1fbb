"""SSH, on paramiko: OpenSSH resolves the configuration (``ssh -G``), paramiko holds the session.

Only this package imports paramiko, and only inside its functions.
"""
