"""The numpy meaning of every op: what a kernel must compute, one file per op.

Functions take and return numpy arrays of one floating dtype (float32, or float64 as a referee) and
never change their inputs, except where the name says so (`append_latent`, `compact`).
`by_row=True` computes every row alone with the arithmetic of a one-row call, so that a row's result
does not depend on how many other rows share the call.
"""
