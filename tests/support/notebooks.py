"""The committed notebooks, and a made-up one that is as it should be."""

from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
GOOD = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "cells": [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {},
            "execution_count": number,
            "source": f"assert True\n{number} * 111",
            "outputs": [
                {
                    "output_type": "execute_result",
                    "execution_count": number,
                    "metadata": {},
                    "data": {"text/plain": str(number * 111)},
                }
            ],
        }
        for number in (1, 2, 3)
    ],
}
