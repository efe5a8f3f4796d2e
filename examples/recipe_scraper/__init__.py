"""A tool call that turns the address of a web page into a recipe, as a job.

    python -m examples.recipe_scraper https://example.com/plum-cake
    agentbus job run --prefix RECIPE_ -- python -m examples.recipe_scraper URL

What is generic is the library's; here stand only the tool's own words (messaging.py), its guard
(guard.py), and what it does (fetch.py, extract.py, recipe.py).
"""
