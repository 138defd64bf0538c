"""The tests of tinynorm on CuPy's arrays. A package, since names of files elsewhere in the tests come again here."""
