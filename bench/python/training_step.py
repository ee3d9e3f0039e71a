"""One step of a network of 784-1024-1024-10 with a batch of 256 images: forward, gradients, and a step of SGD. The same
arithmetic with lgpu, on a simulated GPU, and in TensorFlow, as a tf.function on the CPU."""

import numpy as np

LAYERS, BATCH, RATE = (784, 1024, 1024, 10), 256, 0.01


def _numbers():
    """Images, labels, and the kernel and bias of each layer."""
    random = np.random.default_rng(1)
    values = [(random.standard_normal(shape, np.float32) / np.float32(shape[0]) ** 0.5, np.zeros(shape[1], np.float32))
              for shape in zip(LAYERS, LAYERS[1:])]
    return random.random((BATCH, LAYERS[0]), np.float32), random.integers(0, 10, BATCH, np.int32), values


def of_lgpu(ctx):
    import lgpu
    from lgpu import distribute
    images, labels, values = _numbers()
    images, labels = ctx.constant(images), ctx.constant(labels)
    layers = [[ctx.constant(part) for part in layer] for layer in values]
    scale = ctx.constant(1 / BATCH)

    def step():
        inputs, before = [images], []
        for kernel, bias in layers[:-1]:
            before.append(distribute.dense(inputs[-1], kernel, bias))
            inputs.append(lgpu.relu(before[-1]))
        losses, gradient = lgpu.sparse_softmax_cross_entropy_with_logits(labels, distribute.dense(inputs[-1], *layers[-1]))
        gradient = gradient * scale
        for i in reversed(range(len(layers))):
            kernel, bias = layers[i]
            of_input, of_kernel, of_bias = distribute.dense_grad(inputs[i], kernel, gradient, of_x=i > 0)
            if i > 0:
                gradient = lgpu.relu_grad(of_input, before[i - 1])
            layers[i] = [kernel - of_kernel * RATE, bias - of_bias * RATE]
        return lgpu.reduce_mean(losses).item()

    return step


def of_tensorflow(tf):
    images, labels, values = _numbers()
    with tf.device("CPU:0"):
        images, labels = tf.constant(images), tf.constant(labels)
        layers = [[tf.Variable(part) for part in layer] for layer in values]

        @tf.function
        def train():
            with tf.GradientTape() as tape:
                hidden = images
                for i, (kernel, bias) in enumerate(layers):
                    hidden = hidden @ kernel + bias
                    if i + 1 < len(layers):
                        hidden = tf.nn.relu(hidden)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden))
            variables = [part for layer in layers for part in layer]
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(RATE * gradient)
            return loss

        train()  # traced once, not measured
    return lambda: train().numpy()


def losses(step, count=5):
    return [float(step()) for _ in range(count)]
