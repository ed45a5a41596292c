"""A package, so that test_forward here and in tests/unit are two modules."""
