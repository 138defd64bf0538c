"""Matrix products and einsum."""

from .summation import contracted
from .types import Array, Forward, Namespace, Needs


def matmul(xp: Namespace, a: Array, b: Array, *, needs: Needs = (True, True)) -> Forward:
    """Y = A B over the last two axes ; a vector counts as one row on the left and as one column on the right"""
    return xp.matmul(a, b), (a if needs[1] else None, b if needs[0] else None, a.ndim == 1, b.ndim == 1)


def matmul_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array, bool, bool], needs: Needs = (True, True)
) -> tuple[Array | None, Array | None]:
    """Ā = Ȳ Bᵀ ;   B̄ = Aᵀ Ȳ ;   for Yᵢⱼ = Σₖ Aᵢₖ Bₖⱼ means Āᵢₖ = Σⱼ Ȳᵢⱼ Bₖⱼ and B̄ₖⱼ = Σᵢ Aᵢₖ Ȳᵢⱼ"""
    a, b, row, column = cache
    if column:
        dy = dy[..., None]
    if row:
        dy = dy[..., None, :]
    da = db = None
    if needs[0]:
        da = contracted(xp, dy, b[None, :] if column else xp.swapaxes(b, -1, -2))
        da = da[..., 0, :] if row else da
    if needs[1]:
        db = contracted(xp, a[:, None] if row else xp.swapaxes(a, -1, -2), dy)
        db = db[..., 0] if column else db
    return da, db


def einsum(xp: Namespace, *operands: Array, inputs: tuple[str, ...], output: str) -> Forward:
    """Y[output] = Σ Π operands[inputs], summed over every label that the output lacks

    The labels are plain letters, none twice in one operand: ellipses and diagonals are spelled out beforehand.
    """
    return xp.einsum(f"{','.join(inputs)}->{output}", *operands, optimize=True), (operands, inputs, output)


def einsum_backward(
    xp: Namespace, dy: Array, cache: tuple[tuple[Array, ...], tuple[str, ...], str], needs: Needs
) -> tuple[Array, ...]:
    """Each operand's gradient is the einsum of ȳ with the other operands, onto that operand's labels"""
    operands, inputs, output = cache
    gradients: list[Array] = []
    for k, (operand, labels) in enumerate(zip(operands, inputs, strict=True)):
        if not needs[k]:
            gradients.append(None)
            continue
        others = [i for i in range(len(operands)) if i != k]
        terms = [output] + [inputs[i] for i in others]
        found = [label for label in labels if any(label in term for term in terms)]
        g = _by_halves(xp, terms, "".join(found), [dy, *(operands[i] for i in others)])
        # A label that stands in this operand alone was summed over: every element gets the same.
        g = xp.reshape(g, tuple(g.shape[found.index(label)] if label in found else 1 for label in labels))
        # Where the others have length 1, the gradient still has the operand's length.
        shape = tuple(n if m == 1 else m for n, m in zip(operand.shape, g.shape, strict=True))
        gradients.append(xp.broadcast_to(g, shape))
    return tuple(gradients)


def _by_halves(xp: Namespace, terms: list[str], output: str, operands: list[Array]) -> Array:
    """The einsum, in which no sum has more than some thousand terms at a time: halves are added instead, of halves …"""
    lengths = {
        label: n for t, o in zip(terms, operands, strict=True) for label, n in zip(t, o.shape, strict=True) if n > 1
    }
    label = next((label for label, n in lengths.items() if label not in output and n > 4096), None)
    if label is None:
        return xp.einsum(f"{','.join(terms)}->{output}", *operands, optimize=True)

    def part(along: slice) -> Array:
        cut = [
            o[(slice(None),) * t.index(label) + (along,)] if label in t and o.shape[t.index(label)] > 1 else o
            for t, o in zip(terms, operands, strict=True)
        ]
        return _by_halves(xp, terms, output, cut)

    half = lengths[label] // 2
    return part(slice(half)) + part(slice(half, None))
