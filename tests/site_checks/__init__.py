"""What is asked of the built site: `reading` reads its pages as HTML (`page`), `browser` looks at them in Chromium.

A check takes what it looks at and gives complaints, in words that lead to the fault; none is the wish. The tests are in
tests/test_site.py, which also holds every check to pages with one fault each.
"""
