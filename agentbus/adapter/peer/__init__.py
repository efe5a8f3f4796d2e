"""The tool `peer`: what a client sees of it, what one conversation holds, what each call does."""
