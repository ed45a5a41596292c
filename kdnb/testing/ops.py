"""Does every op of a kernel backend compute what kdnb.reference means?"""

from collections.abc import Callable, Iterable

from kdnb.backends.kernel_backend import KernelBackend
from kdnb.testing import op_attention, op_choice, op_dense, op_experts, op_tree
from kdnb.testing.judge import Judge

OPS: dict[str, Callable[[Judge], None]] = {
    "rows": op_dense.check_rows,
    "cache": op_dense.check_cache,
    "linear": op_dense.check_linear,
    "norms": op_dense.check_norms,
    "mlp": op_dense.check_mlp,
    "rope": op_attention.check_rope,
    "mla": op_attention.check_mla,
    "append_latent": op_attention.check_append_latent,
    "verify_attention": op_attention.check_verify_attention,
    "head_norm_rope": op_attention.check_head_norm_rope,
    "draft_attention": op_attention.check_draft_attention,
    "router": op_experts.check_router,
    "experts": op_experts.check_experts,
    "top_k": op_choice.check_top_k,
    "argmax": op_choice.check_argmax,
    "sample": op_choice.check_sample,
    "tree_build": op_tree.check_tree_build,
    "tree_accept": op_tree.check_tree_accept,
    "cache_compact": op_tree.check_cache_compact,
}


def check_ops(
    backend: KernelBackend,
    *,
    seed: int = 0,
    wide: bool = False,
    only: Iterable[str] | None = None,
    say: Callable[[str], object] | None = None,
) -> str:
    """Judge every op against kdnb.reference in float64, on the inputs as the backend stores them.

    Integers and copies must be equal. Floats may be off by 1e-5 of the result's root mean square, and by
    half a unit in the last place of bfloat16 where they are stored in it.

    Args:
        backend: The backend to judge.
        seed: Of all inputs.
        wide: Ask for the shapes of real models too: long contexts, large vocabularies and budgets.
        only: Names of OPS; None is all.
        say: Called with a line per op, when it has passed.

    Returns:
        A digest of all results: equal for two runs that computed the same bits.

    Raises:
        CheckFailed: at the first wrong value; the message names the op, its shape and where.
    """
    judge = Judge(backend, seed, wide)
    for name in OPS if only is None else only:
        before = judge.num_results
        OPS[name](judge)
        if say is not None:
            say(f"{name}: {judge.num_results - before} results agree")
    return judge.digest
