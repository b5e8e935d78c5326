"""Writes Python modules of the package as one JavaScript module, for the page in the browser.

The rules of `vivace.text` are written once, in Python. `bundle` collects the functions, classes and
constants that an entry point uses. `code` writes functions and classes, `expressions` their
expressions, `values` constants, and `regex` patterns. `docs/try/python.js` provides Python's types.

A construct that is not supported raises `UnsupportedError`, which names its line.
"""
