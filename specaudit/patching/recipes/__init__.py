"""Recipes: one file each; :func:`specaudit.patching.recipes.registry.recipes` lists them."""
