"""The story of the project in one run: 64 residual blocks without a norm, and with LayerNorm or RMSNorm, pre or post.

    python examples/deep_stack.py --plot deep_stack.png

All five stacks see the same digits in the same order and start from the same Linear weights. A block adds W relu(h) to
the stream h. With He's initial W, of standard deviation √(2 / fan_in), that has the mean square of what relu is given:

    no norm     h ← h + W relu(h)            each block doubles the mean square of h
    pre-norm    h ← h + W relu(norm(h))      each block adds 1 to it
    post-norm   h ← norm(h + W relu(h))      it is 1 after each block

What to look for: the root mean squares of h and of its gradient ∂ℒ/∂h from block to block, at the start and after
training, and what becomes of the loss. Training is SGD with momentum 0.9 at a constant learning rate, without warm-up
and without gradient clipping, for all alike. The closing lines put predictions beside measurements; a claim may fail.

Sources: He et al., "Delving Deep into Rectifiers" (2015), for the initial weights; Xiong et al., "On Layer
Normalization in the Transformer Architecture" (2020), for what pre- and post-norm do to gradients.
"""

import argparse
from collections.abc import Callable
from itertools import chain, count, islice, product
from math import isfinite, log, sqrt
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from support import Split, at_least, digits, picture_file, run

import tinynorm as tn
from tinynorm.extras import optional


class Config(NamedTuple):
    """One of the five stacks, and how its line is drawn."""

    name: str
    norm: Callable[[int], tn.nn.Module]
    post: bool
    line: dict[str, Any]


BLACK, BLUE, RED = "#000000", "#0072B2", "#D55E00"  # of Okabe and Ito's palette for all kinds of colour vision
WIDE, DASHED = {"lw": 5, "alpha": 0.4}, {"lw": 1.8, "ls": (0, (4, 1.5))}  # where they coincide, both are seen
CONFIGS = [
    Config("no norm", lambda width: tn.nn.Identity(), False, {"color": BLACK, "lw": 2}),
    Config("LayerNorm pre", tn.nn.LayerNorm, False, {"color": BLUE, **WIDE}),
    Config("RMSNorm pre", tn.nn.RMSNorm, False, {"color": BLUE, **DASHED}),
    Config("LayerNorm post", tn.nn.LayerNorm, True, {"color": RED, **WIDE}),
    Config("RMSNorm post", tn.nn.RMSNorm, True, {"color": RED, **DASHED}),
]


class Look(NamedTuple):
    """A model at one moment: two scales of the stream, [i] being that after block i; and how well it does."""

    activation: np.ndarray
    gradient: np.ndarray
    loss: float  # over all training images
    accuracy: float  # on the held-out fifth


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=at_least(2), default=64, help="residual blocks; default: 64")
    parser.add_argument("--width", type=at_least(2), default=32, help="size of the residual stream; default: 32")
    parser.add_argument("--steps", type=at_least(1), default=200, help="of training, for each stack; default: 200")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate; default: 0.01")
    parser.add_argument(
        "--seed", type=at_least(0), default=0, help="of the split, the weights and the batches; default: 0"
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=picture_file, help="write one picture with the scales and the losses"
    )
    parser.add_argument("--layers", action="store_true", help="print the scales after every block too")
    parser.add_argument("--quiet", action="store_true", help="print the closing lines only")
    return parser.parse_args(argv)


def build(config: Config, args: argparse.Namespace) -> tn.nn.Sequential:
    """Linear, the blocks, pre-norm's last norm, Linear. Norms draw no random numbers, so the Linears are the same."""
    rng, width, blocks = np.random.default_rng(args.seed), args.width, []
    embed, head = tn.nn.Linear(64, width, rng=rng), tn.nn.Linear(width, 10, rng=rng)
    for _ in range(args.depth):
        linear, norm = tn.nn.Linear(width, width, rng=rng), config.norm(width)
        linear.weight = tn.nn.Parameter(rng.normal(0.0, sqrt(2.0 / width), (width, width)).astype(np.float32))
        linear.bias = tn.nn.Parameter(np.zeros(width, np.float32))
        before, after = (tn.nn.Identity(), norm) if config.post else (norm, tn.nn.Identity())
        body = tn.nn.Sequential(tn.nn.ReLU(), linear)
        blocks.append(tn.nn.Sequential(tn.nn.PreNormBlock(before, body), after))  # h ← after(h + body(before(h)))
    return tn.nn.Sequential(embed, *blocks, tn.nn.Identity() if config.post else config.norm(width), head)


def look_at(model: tn.nn.Sequential, split: Split) -> Look:
    """Measure. The scales are those on one batch of test images."""
    layers = [str(i) for i in range(len(model) - 2)]  # not the last norm and Linear
    rows = tn.inspect.scales(model, (split.x_test[:256], split.y_test[:256]), layers=layers)
    with tn.no_grad():
        loss = tn.functional.cross_entropy(model(tn.as_tensor(split.x_train)), split.y_train).item()
        right = model(tn.as_tensor(split.x_test)).numpy().argmax(axis=1) == split.y_test
    activations, gradients = (np.array([row[i] for row in rows]) for i in (1, 2))
    return Look(activations, gradients, loss, float(right.mean()))


def train(model: tn.nn.Sequential, split: Split, args: argparse.Namespace, progress: Callable[[], Any]) -> list[float]:
    """The loss of each step; after one that is not finite there is nothing to go on with."""
    optimizer, rng = tn.optim.SGD(model, lr=args.lr, momentum=0.9), np.random.default_rng(args.seed)
    epochs = (tn.data.batches(split.x_train, split.y_train, 64, rng=rng) for _ in count())
    losses: list[float] = []
    for x, y in islice(chain.from_iterable(epochs), args.steps):
        loss = tn.functional.cross_entropy(model(tn.as_tensor(x)), y)
        losses.append(loss.item())
        progress()
        if not isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def experiment(args: argparse.Namespace) -> tuple[list[Look], list[list[float]], list[Look]]:
    """All five stacks: how they are at the start, their losses, how they are after training."""
    split = digits(np.random.default_rng(args.seed))
    mean = split.x_train.mean(axis=0)
    split = split._replace(x_train=split.x_train - mean, x_test=split.x_test - mean)
    starts, losses, ends = [], [], []
    for config in CONFIGS:
        model = build(config, args)
        with optional("tqdm", "examples").tqdm(desc=config.name, total=args.steps, disable=args.quiet) as bar:
            starts.append(look_at(model, split))
            losses.append(train(model, split, args, bar.update))
            ends.append(look_at(model, split))
    return starts, losses, ends


def table(starts: list[Look], ends: list[Look], d: int) -> str:
    """Two lines for each stack: at the start, and after training."""
    blocks = sorted({1, max(1, d // 4), d // 2, 3 * d // 4, d})
    numbers, span = "".join(f"{i:>8}" for i in blocks), 8 * len(blocks)
    lines = [f"{'':<21}{'activation after block':>{span}}  {'gradient there':>{span}}"]
    lines += [f"{'configuration':<21}{numbers}  {numbers}{'loss':>10}{'test accuracy':>15}"]
    for config, start, end in zip(CONFIGS, starts, ends, strict=True):
        for label, look in (f"{config.name:<15}start", start), (f"{'':<15}after", end):
            cells = "  ".join("".join(f"{h[i]:>8.2g}" for i in blocks) for h in (look.activation, look.gradient))
            loss = f"{look.loss:.3g}" if isfinite(look.loss) else "diverged"
            lines.append(f"{label:<21}{cells}{loss:>10}{look.accuracy:>15.4f}")
    return "\n".join(lines)


def every_layer(title: str, looks: list[Look]) -> str:
    """One line for each block: the activations of all stacks, then their gradients."""
    names = "".join(f"{config.name:>16}" for config in CONFIGS)
    lines = [f"{title + ', block':<23}{'activation':<80}gradient", f"{'':<20}{names}{names}"]
    for i in range(len(looks[0].activation)):
        cells = [h[i] for h in [*(look.activation for look in looks), *(look.gradient for look in looks)]]
        lines.append(f"{i:<20}" + "".join(f"{cell:>16.3g}" for cell in cells))
    return "\n".join(lines)


def claim(text: str, predicted: float, factor: float, *measured: float) -> str:
    """A sentence that holds if what was measured, once or for both norms, is what was predicted, up to a factor."""
    mark = "holds  " if all(predicted / factor < value < predicted * factor for value in measured) else "FAILS  "
    names = ("LayerNorm ", "RMSNorm ") if len(measured) == 2 else ("",)
    found = ", ".join(f"{name}{value:.3g}" for name, value in zip(names, measured, strict=True))
    return fill(f"{mark}{text}: predicted {predicted:.3g}, measured {found}.", 118, subsequent_indent=" " * 7)


def claims(starts: list[Look], losses: list[list[float]], ends: list[Look], d: int) -> list[str]:
    """What theory says of d blocks with He's weights at the start; and what became of them."""
    a, g = np.array([look.activation for look in starts]), np.array([look.gradient for look in starts])
    growth, back, added = a[0, d] / a[0, 0], g[:, 1] / g[:, d], a[1:3] ** 2 - a[1:3, :1] ** 2
    loose = 1.15 ** (d / 2)  # one draw of W strays from the mean by a little in each block, and mostly below
    none, layer, rms, *post = (look.accuracy for look in ends)
    left, left2 = (f"{look.gradient[1] / look.gradient[d]:.1g}" for look in ends[3:])
    lost = f"its gradient at block 1 now {left} and {left2} times that at block {d}"
    bare = f"loss {losses[0][0]:.2g} at step 1, {losses[0][-1]:.2g} at step {len(losses[0])}"
    return [
        claim(f"No norm: {d} blocks make the stream 2^({d}/2) times as large", 2 ** (d / 2), loose, growth),
        claim("No norm: each doubles its mean square, averaged over all draws of W", 2, 1.15, growth ** (2 / d)),
        claim(f"No norm: the gradient grows alike, from block {d} back to 1", 2 ** ((d - 1) / 2), loose, back[0]),
        claim(f"No norm: training fails, with {bare}; test accuracy, 0.1 by guessing", 0.1, 2, none),
        claim(f"Pre-norm: {d} blocks add {d} to the stream's mean square", d, 2, *added[:, d]),
        claim("Pre-norm: half the blocks add half of that", d // 2 / d, 1.5, *added[:, d // 2] / added[:, d]),
        claim(f"Pre-norm: the gradient grows only √{d}-fold from block {d} back to 1", sqrt(d), 3, *back[1:3]),
        claim("Pre-norm: training works; test accuracy", 0.95, 1.06, layer, rms),
        claim("Pre-norm: RMSNorm is much like LayerNorm; ratio of test accuracies", 1, 1.03, rms / layer),
        claim("Post-norm: the stream is 1 after every block; least", 1, 1.01, *a[3:, 1:].min(axis=1)),
        claim(f"Post-norm: the gradient is of one order from block {d} to 1 (within ×30); ratio", 1, 30, *back[3:]),
        claim(f"Post-norm: at block {d} it is √{d} × pre-norm's (Xiong et al.)", sqrt(d), 2, *g[3:, d] / g[1:3, d]),
        claim(f"Post-norm: training, without warm-up, fails (Xiong et al.), {lost}; test accuracy", 0.1, 2, *post),
    ]


def plot(file: str, starts: list[Look], losses: list[list[float]], ends: list[Look]) -> None:
    """One picture: both scales at the start and after training, and the losses."""
    figure = optional("matplotlib.figure", "examples").Figure(figsize=(12, 7), layout="constrained")
    axes = figure.subplot_mosaic("ABE;CDE", width_ratios=[1, 1, 1.2])
    blocks, first = np.arange(len(starts[0].activation)), starts[0].activation[0]
    moments = ("at the start", starts), ("after training", ends)
    for panel, (what, (when, looks)) in zip("ABCD", product(("activation", "gradient"), moments), strict=True):
        for config, look in zip(CONFIGS, looks, strict=True):
            if isfinite(look.loss):
                axes[panel].plot(getattr(look, what), **config.line)
        axes[panel].set(title=f"{what} {when}", xlabel="after block", xticks=blocks[:: max(1, len(blocks) // 4)])
    for prediction, label in (first * 2 ** (blocks / 2), "predicted"), (np.sqrt(first**2 + blocks), None):
        axes["A"].plot(prediction, "k:", label=label)
    for config, curve, end in zip(CONFIGS, losses, ends, strict=True):
        result = f"{end.accuracy:.1%}" if isfinite(curve[-1]) else f"diverged at step {len(curve)}"
        label, steps = f"{config.name}: {result}", range(1, len(curve) + 1)
        axes["E"].plot(steps, curve, label=label, marker="" if isfinite(curve[-1]) else "X", ms=9, **config.line)
    axes["E"].axhline(log(10), color="k", ls=":", label="guessing: 10%")
    axes["E"].set(title="training loss", xlabel="step")
    axes["E"].legend(title="stack, and its test accuracy", loc="center right")
    axes["A"].legend(frameon=False)
    for ax in axes.values():
        ax.set_yscale("log")
        low, high = np.log10(ax.get_ylim())
        ax.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{len(blocks) - 1} residual blocks: root mean squares of the stream h and of its gradient ∂ℒ/∂h")
    figure.savefig(file, dpi=110)


def main() -> None:
    """Train, measure, draw, and say what came out."""
    args = arguments()
    # Without a norm float32 overflows: a result, reported as inf or nan, and nothing to be warned of.
    with np.errstate(over="ignore", invalid="ignore"):
        starts, losses, ends = experiment(args)
    if not args.quiet:
        print(table(starts, ends, args.depth), end="\n\n")
    if args.layers:
        print(every_layer("at the start", starts), every_layer("after training", ends), sep="\n\n", end="\n\n")
    print(*claims(starts, losses, ends, args.depth), sep="\n")
    if args.plot:
        plot(args.plot, starts, losses, ends)


if __name__ == "__main__":
    run(main)
