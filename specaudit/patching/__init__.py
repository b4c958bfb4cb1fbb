"""Changing an installed engine: plan -> apply -> journal -> verify, and back."""
