#!/usr/bin/env python3
"""Handwritten digits, learned by two dense layers on several logical GPUs at once: 07_digits in Python.

    python3 examples/digits.py --devices 2 --memory 64MiB
"""

import argparse
import pathlib
import sys

import lgpu
import numpy as np
from lgpu import distribute

PIXELS, HIDDEN, CLASSES, TEST_IMAGES = 64, 128, 10, 360


def read_images(file):
    """Pixels from 0 to 1 and labels; the last TEST_IMAGES are for the test."""
    rows = np.loadtxt(file, delimiter=",", dtype=np.int32)
    np.random.default_rng(1).shuffle(rows)
    return rows[:, :PIXELS].astype(np.float32) / 16, np.ascontiguousarray(rows[:, PIXELS])


def make_network(strategy):
    """Two dense layers with Relu between."""
    shapes = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    return [strategy.variable(distribute.zeros(shape) if len(shape) == 1 else distribute.glorot_uniform(shape, seed))
            for seed, shape in enumerate(shapes, 1)]


def logits_of(x, kernel1, bias1, kernel2, bias2):
    before = distribute.dense(x, kernel1, bias1)
    hidden = lgpu.relu(before)
    return before, hidden, distribute.dense(hidden, kernel2, bias2)


def train(replica, x, labels, batch, network, sgd):
    """One replica's step; its part of the loss."""
    values = [replica.read(variable) for variable in network]
    before, hidden, logits = logits_of(x, *values)
    loss, gradient = distribute.sparse_categorical_crossentropy(replica, logits, labels, replica.loss_weight(batch))
    of_hidden, kernel2, bias2 = distribute.dense_grad(hidden, values[2], gradient)
    _, kernel1, bias1 = distribute.dense_grad(x, values[0], lgpu.relu_grad(of_hidden, before), of_x=False)
    sgd.apply(replica, network, replica.all_reduce("sum", [kernel1, bias1, kernel2, bias2]))
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--data", default=pathlib.Path(__file__).parent / "data" / "digits.csv")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    pixels, labels = read_images(args.data)
    count = len(labels) - TEST_IMAGES
    with lgpu.Context(devices=args.devices, memory_limit=args.memory) as ctx:
        strategy = lgpu.MirroredStrategy(ctx)
        network = make_network(strategy)
        sgd = distribute.SGD(strategy, learning_rate=0.1, momentum=0.9)
        for epoch in range(1, args.epochs + 1):
            losses = []
            for begin in range(0, count - args.batch + 1, args.batch):
                with ctx.device("CPU:0"):
                    x = ctx.constant(pixels[begin:begin + args.batch])
                    y = ctx.constant(labels[begin:begin + args.batch])
                parts = strategy.split(x)
                losses.append(sum(strategy.run(lambda replica, x, y: train(replica, x, y, parts, network, sgd),
                                               args=(parts, strategy.split(y)))))
            print(f"epoch {epoch}/{args.epochs}  loss {np.mean(losses):.4f}")
        test = ctx.constant(pixels[count:])
        guesses = logits_of(test, *(variable.value() for variable in network))[2].numpy().argmax(axis=1)
        accuracy = (guesses == labels[count:]).mean()
        print(f"test accuracy {accuracy:.3f} on {args.devices} logical GPU{'s' if args.devices > 1 else ''}")


if __name__ == "__main__":
    try:
        main()
    except lgpu.Error as error:
        sys.exit(f"digits.py: error: {error}")
