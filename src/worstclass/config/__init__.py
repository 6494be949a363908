"""What decides a run: the keys of a recipe, who owns them, the methods by name, and recipes as files."""
