"""Train a pre-norm MLP on handwritten digits, and look inside it.

    python examples/train_mlp.py --plot digits.png

What to look for: the test accuracy, and the table at the end: how large the stream that the blocks add to is after each
of them, and how large its gradient is on the way back. Each block adds to the stream, but what it sees is normalized.
Try `--norm none`, and more blocks, as in `--depth 24`; how deep stacks fare with and without norms is the story of
deep_stack.py.

A long run is kept in a file, and goes on from there after Ctrl-C, a crash or a power cut:

    python examples/train_mlp.py --checkpoint run.npz --resume

The first time there is nothing to resume, and it starts anew. However often it was stopped, it prints and draws what it
would have without a break; keeping.py says why. A loss that is not finite ends it for good, as it does with
`--norm none --lr 0.1 --depth 24`; where only a batch is at fault, `--skip-bad 1` leaves that out.

The data are the UCI digits that come with scikit-learn, 1,797 real 8×8 images; or MNIST's own IDX files, with
`--data DIRECTORY`.
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from keeping import History, Keeper, Progress
from support import Split, at_least, digits, picture_file, run

import tinynorm as tn
from tinynorm.extras import optional

OPTIMIZERS: dict[str, tuple[Callable[..., tn.optim.Optimizer], float]] = {
    "adamw": (tn.optim.AdamW, 0.003),
    "adam": (tn.optim.Adam, 0.003),
    "sgd": (partial(tn.optim.SGD, momentum=0.9), 0.1),
}
# Pixels lie between 0 and 1. Seeing each image a little different every time keeps the model from learning all 1,438 by
# heart: over five seeds, the share of errors falls from 1.7 % to 1.0 %.
PIXEL_NOISE = 0.1


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norm", choices=["rms", "layer", "none"], default="rms", help="default: rms")
    parser.add_argument("--depth", type=at_least(0), default=3, help="residual blocks; default: 3")
    parser.add_argument("--width", type=at_least(1), default=64, help="size of the residual stream; default: 64")
    parser.add_argument("--epochs", type=at_least(1), default=30, help="default: 30")
    parser.add_argument("--batch-size", type=at_least(1), default=32, help="default: 32")
    parser.add_argument("--lr", type=float, help="highest learning rate; default: 0.003, with sgd 0.1")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adamw", help="default: adamw")
    parser.add_argument(
        "--seed", type=at_least(0), default=0, help="of the split, the weights and the batches; default: 0"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument(
        "--accumulate",
        type=at_least(1),
        default=1,
        metavar="N",
        help="take each batch in N parts, which need less memory",
    )
    parser.add_argument(
        "--data-parallel",
        action="store_true",
        help="share each batch among processes; start with mpiexec -n 4 python -m mpi4py",
    )
    parser.add_argument("--data", metavar="DIRECTORY", help="train on MNIST's IDX files instead")
    parser.add_argument(
        "--plot", metavar="FILE", type=picture_file, help="write one picture with loss, accuracy and scales"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the run in this file, .npz or .safetensors")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, where there is one")
    parser.add_argument(
        "--skip-bad",
        type=at_least(0),
        default=0,
        metavar="N",
        help="leave out up to N batches in a row whose loss is not finite; default: 0, the first one ends the run",
    )
    parser.add_argument("--quiet", action="store_true", help="print the last line only")
    args = parser.parse_args(argv)
    if args.resume and args.checkpoint is None:
        parser.error("argument --resume: needs --checkpoint FILE, to go on from there")
    if args.lr is None:
        args.lr = OPTIMIZERS[args.optimizer][1]
    return args


def load(args: argparse.Namespace, rng: np.random.Generator) -> Split:
    """The digits, or MNIST."""
    if args.data is None:
        return digits(rng)
    split = Split(*tn.data.mnist(args.data))
    if 0 in (len(split.y_train), len(split.y_test)):
        raise tn.errors.DataError(f"--data: the files in {args.data} hold no images")
    return split


def train(
    model: tn.nn.Module, split: Split, args: argparse.Namespace, rng: np.random.Generator, ranks: tn.parallel.Ranks
) -> History:
    """Train for all epochs, or for those that a checkpoint has left, with a progress bar."""
    optimizer = OPTIMIZERS[args.optimizer][0](tn.optim.decay_groups(model, weight_decay=0.01), lr=args.lr)
    steps = args.epochs * -(-len(split.x_train) // args.batch_size)
    schedule = tn.optim.WarmupCosine(optimizer, warmup_steps=max(1, steps // 20), total_steps=max(2, steps))
    guard = tn.optim.LossGuard(skip=args.skip_bad)
    progress = Progress(model, optimizer, schedule, guard, rng)
    tqdm = partial(optional("tqdm", "examples").tqdm, disable=args.quiet or ranks.rank > 0, unit="step", leave=True)
    with (
        Keeper(progress, args.checkpoint, args.resume, configuration(args, split, ranks), ranks) as keeper,
        tqdm(total=steps, initial=progress.step) as bar,
        np.errstate(over="ignore", invalid="ignore"),  # of which the guard tells, and more
    ):
        ranks.replicate(model)
        while len(progress.history.loss) < args.epochs:
            for indices in progress.batches(len(split.x_train), args.batch_size):  # the same on every rank
                x, y = noisy(split.x_train[indices], rng), split.y_train[indices]
                own = ranks.share(len(y))
                optimizer.zero_grad()
                loss = ranks.total(backward(model, x[own], y[own], args))
                rows = ranks.average(model.parameters(), len(y[own]))
                if guard.check(loss / rows, progress.step + 1, indices, args.checkpoint):
                    progress.count(loss, rows)
                    tn.optim.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                elif not bar.disable:
                    bar.write(f"step {progress.step + 1} is left out: its loss is {loss}", file=sys.stderr)
                schedule.step()
                bar.update()
                keeper.after_step()
            progress.end_epoch(accuracy(model, split.x_test, split.y_test, args.device, ranks))
            keeper.save()
            bar.set_postfix(loss=f"{progress.history.loss[-1]:.3f}", accuracy=f"{progress.history.accuracy[-1]:.4f}")
    return progress.history


def configuration(args: argparse.Namespace, split: Split, ranks: tn.parallel.Ranks) -> dict[str, Any]:
    """What decides about the numbers. A run that differs in any of it is another run, and cannot be gone on with."""
    options = "norm", "depth", "width", "epochs", "batch_size", "lr", "optimizer", "seed", "accumulate"
    decides = {f"--{option.replace('_', '-')}": getattr(args, option) for option in options}
    decides["--device"] = args.device.partition(":")[0]  # the processes of one host may have several
    decides["number of processes"] = ranks.size
    decides["data"] = "the digits"
    if args.data is not None:  # which may have moved to another directory
        checksum = 0
        for array in split:
            checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
        decides["data"] = f"MNIST's, of checksum {checksum:08x},"
    return decides


def noisy(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images, a little different every time."""
    return x + PIXEL_NOISE * rng.standard_normal(x.shape, dtype=np.float32)


def backward(model: tn.nn.Module, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> float:
    """The loss, summed over the rows, and its gradients; a part of the rows at a time."""
    total = 0.0
    for xs, ys in parts(x, y, args.accumulate):
        logits = model(tn.as_tensor(xs, device=args.device))
        loss = tn.functional.cross_entropy(logits, tn.as_tensor(ys, device=args.device), reduction="sum")
        loss.backward()
        total += loss.item()
    return total


def parts(x: np.ndarray, y: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A batch in n parts, of which none is empty."""
    return ((xs, ys) for xs, ys in zip(np.array_split(x, n), np.array_split(y, n), strict=True) if len(ys))


def accuracy(model: tn.nn.Module, x: np.ndarray, y: np.ndarray, device: str, ranks: tn.parallel.Ranks) -> float:
    """The share of images whose largest logit is that of their class; each rank looks at some."""
    own, right = ranks.share(len(y)), 0
    with tn.no_grad():
        for xb, yb in tn.data.batches(x[own], y[own], 1024, shuffle=False):
            right += int((model(tn.as_tensor(xb, device=device)).numpy().argmax(axis=1) == yb).sum())
    return ranks.total(right) / len(y)


def look_inside(model: tn.nn.PreNormMLP, split: Split, device: str) -> list[tn.inspect.Scale]:
    """Activation and gradient scales of the residual stream, for one batch of test images."""
    x, y = split.x_test[:256], split.y_test[:256]
    return tn.inspect.scales(model, (tn.as_tensor(x, device=device), tn.as_tensor(y, device=device)))


def table(rows: list[tn.inspect.Scale]) -> str:
    """The scales in columns."""
    head = f"{'after':<10}{'activation':>12}{'gradient':>12}"
    return "\n".join([head, *(f"{r.name:<10}{r.activation:>12.3g}{r.gradient:>12.3g}" for r in rows)])


def plot(file: str, history: History, rows: list[tn.inspect.Scale], title: str) -> None:
    """One picture: how training went, and what the stream looks like afterwards."""
    figure_module = optional("matplotlib.figure", "examples")
    figure = figure_module.Figure(figsize=(12, 3.6), layout="constrained")
    loss, acc, scale = figure.subplots(1, 3)
    epochs = range(1, len(history.loss) + 1)
    loss.semilogy(epochs, history.loss, color="C3")
    loss.set(title="training loss", xlabel="epoch", ylabel="cross-entropy")
    acc.plot(epochs, history.accuracy, color="C0")
    acc.set(title=f"test accuracy: {history.accuracy[-1]:.4f}", xlabel="epoch", ylim=(min(0.9, *history.accuracy), 1.0))
    names = [row.name for row in rows]
    scale.semilogy(names, [row.activation for row in rows], "o-", label="activation")
    scale.semilogy(names, [row.gradient for row in rows], "s-", label="gradient")
    scale.set(title="scale after each layer (root mean square)")
    scale.tick_params(axis="x", rotation=60)
    scale.legend()
    figure.suptitle(title)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Load, train, test, look inside, draw."""
    args = arguments()
    ranks = tn.parallel.connect() if args.data_parallel else tn.parallel.alone()
    args.device = ranks.device(args.device)
    rng = np.random.default_rng(args.seed)
    split = load(args, rng)
    model = tn.nn.PreNormMLP(
        split.x_train.shape[1], args.width, args.depth, 10, norm=args.norm, rng=rng, device=args.device
    )
    history = train(model, split, args, rng, ranks)
    if ranks.rank > 0:  # one is enough to tell
        return
    rows = look_inside(model, split, args.device)
    if not args.quiet:
        print(table(rows))
    try:
        if args.plot:
            plot(
                args.plot, history, rows, f"pre-norm MLP, {args.depth} blocks of width {args.width}, norm: {args.norm}"
            )
    finally:  # the result is not lost with the picture
        print(f"test accuracy: {history.accuracy[-1]:.4f}")


if __name__ == "__main__":
    run(main)
