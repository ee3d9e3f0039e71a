"""liblgpu, for the package lgpu."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex, overload


class Tensor:
    """
    A Tensor is an immutable array on one device: the CPU or a logical GPU. Its memory goes back with the last reference.
    """

    @overload
    def __add__(self, arg: Tensor, /) -> Tensor: ...

    @overload
    def __add__(self, other: float, /) -> Tensor: ...

    def __radd__(self, other: float, /) -> Tensor: ...

    @overload
    def __sub__(self, arg: Tensor, /) -> Tensor: ...

    @overload
    def __sub__(self, other: float, /) -> Tensor: ...

    def __rsub__(self, other: float, /) -> Tensor: ...

    @overload
    def __mul__(self, arg: Tensor, /) -> Tensor: ...

    @overload
    def __mul__(self, other: float, /) -> Tensor: ...

    def __rmul__(self, other: float, /) -> Tensor: ...

    def __neg__(self) -> Tensor: ...

    @overload
    def __truediv__(self, arg: Tensor, /) -> Tensor: ...

    @overload
    def __truediv__(self, other: float, /) -> Tensor: ...

    def __rtruediv__(self, other: float, /) -> Tensor: ...

    def __matmul__(self, arg: Tensor, /) -> Tensor: ...

    def __rmatmul__(self, value, /):
        """Return value@self."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""

    @property
    def dtype_name(self) -> str:
        """The name of the element type: "float32"."""

    @property
    def dtype(self) -> Any:
        """The element type, as a numpy.dtype."""

    @property
    def device(self) -> str:
        """
        The full name of the device: "/job:localhost/replica:0/task:0/device:GPU:0".
        """

    def numpy(self) -> Any:
        """A copy of the values on the host, as a numpy.ndarray."""

    def item(self) -> float | int:
        """The value of a tensor with one element."""

    def tolist(self) -> Any:
        """The values as nested lists."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A copy on the host. ValueError for copy=False."""

    def __repr__(self) -> str: ...

    def __bool__(self) -> bool: ...

    def __float__(self) -> float: ...

    def __int__(self) -> int: ...

    def copy_into(self, target: object) -> None:
        """Copies the values into a writable, contiguous buffer of nbytes bytes."""

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """
        The values without a copy, as a DLPack capsule; they stay charged as long as a consumer has them. Versioned capsules are marked as read-only. copy=True: a copy that may be written, on the same device. On a real GPU `stream` waits for the values, and dl_device=(1, 0) gives a copy on the host.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """
        (1, 0), memory of the CPU, for tensors on the CPU and on simulated GPUs; (2, CUDA's number of the card) on a real GPU.
        """

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions in reverse order, a copy."""

    def to(self, device: str) -> Tensor:
        """The tensor on that device: itself, or a copy."""

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape of as many; the memory is shared."""

    def __lt__(self, other: object, /) -> NoReturn: ...

    def __le__(self, other: object, /) -> NoReturn: ...

    def __gt__(self, other: object, /) -> NoReturn: ...

    def __ge__(self, other: object, /) -> NoReturn: ...

    def __pow__(self, other: object, /) -> NoReturn: ...

    def __rpow__(self, other: object, /) -> NoReturn: ...

    def __floordiv__(self, other: object, /) -> NoReturn: ...

    def __rfloordiv__(self, other: object, /) -> NoReturn: ...

    def __mod__(self, other: object, /) -> NoReturn: ...

    def __rmod__(self, other: object, /) -> NoReturn: ...

    def __eq__(self, other: object, /) -> NoReturn: ...

    def __ne__(self, other: object, /) -> NoReturn: ...

    def __len__(self) -> NoReturn: ...

    def __iter__(self) -> NoReturn: ...

    def __contains__(self, value: object, /) -> NoReturn: ...

    def __getitem__(self, index: object, /) -> NoReturn: ...

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any, /) -> NoReturn:
        """numpy's functions take no Tensor: a TypeError that says what to write."""

    def __array_ufunc__(self, function: Any, method: str, /, *inputs: Any, **options: Any) -> Tensor:
        """
        `numpy.float32(2) * tensor` is an op of lgpu's; numpy's functions take no Tensor.
        """

class LogicalDeviceConfiguration:
    """One logical device of a physical one."""

    def __init__(self, memory_limit: int | None, guarantee: int, priority: int | None, device_ordinal: int | None) -> None: ...

    @property
    def memory_limit(self) -> int | None: ...

    @property
    def guarantee(self) -> int: ...

    @property
    def priority(self) -> int | None: ...

    @property
    def device_ordinal(self) -> int | None: ...

class Config:
    """Which devices a Context will have; lgpu.Config is made of it."""

    def __init__(self, strict: bool, endpoint: str, log_sink: object | None) -> None: ...

    def list_physical_devices(self, device_type: str) -> list[Any]: ...

    def list_logical_devices(self, device_type: str) -> list[Any]: ...

    def get_device_details(self, arg: str, /) -> dict[str, Any]: ...

    def set_visible_devices(self, arg0: Sequence[str], arg1: str, /) -> None: ...

    def get_visible_devices(self, arg: str, /) -> list[Any]: ...

    def set_memory_growth(self, arg0: str, arg1: bool, /) -> None: ...

    def get_memory_growth(self, arg: str, /) -> bool | None: ...

    def set_logical_device_configuration(self, arg0: str, arg1: Sequence[LogicalDeviceConfiguration], /) -> None: ...

    def get_logical_device_configuration(self, arg: str, /) -> list[LogicalDeviceConfiguration]: ...

    def set_per_process_gpu_memory_fraction(self, arg: float, /) -> None: ...

    def set_soft_device_placement(self, arg: bool, /) -> None: ...

    def get_soft_device_placement(self) -> bool: ...

    def set_log_device_placement(self, arg: bool, /) -> None: ...

    def get_log_device_placement(self) -> bool: ...

    def set_device_policy(self, policy: str | None) -> None: ...

    def get_device_policy(self) -> str: ...

class LogicalDeviceOptions:
    """One logical device to ask for."""

    def __init__(self, memory_limit: int | None, guarantee: int, preallocate: bool, physical_device: str, name: str, priority: int) -> None: ...

class Context:
    """The connection to logical devices; lgpu.Context is made of it."""

    @overload
    def __init__(self, options: dict[str, Any]) -> None: ...

    @overload
    def __init__(self, options: dict[str, Any], config: Config, has_devices_of_config: bool) -> None: ...

    def close(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def retire(self) -> None:
        """
        Ends the Context now; arrays of other libraries that use its memory keep it until the last is gone.
        """

    def constant(self, dtype: str, shape: Sequence[int], values: object) -> Tensor: ...

    def constant_of_numbers(self, value: Any) -> Tensor | None:
        """None: the value is not made of Python's own numbers alone."""

    @property
    def lease(self) -> str: ...

    def logical_devices(self) -> list[Any]: ...

    def list_logical_devices(self, device_type: str = '') -> list[Any]: ...

    def resize(self, device: str, memory_limit: int, guarantee: int | None = None) -> None: ...

    def trim(self) -> int: ...

    def memory_info(self, arg: str, /) -> dict[str, Any]: ...

    def memory_stats(self, arg: str, /) -> dict[str, Any]: ...

    def memory_summary(self) -> str: ...

    def reset_memory_stats(self, arg: str, /) -> None: ...

    def exports(self) -> tuple[Any, ...]: ...

    def device_mapping(self) -> str: ...

    def set_device_policy(self, arg: str, /) -> None: ...

    def set_log_device_placement(self, arg: bool, /) -> None: ...

    def set_soft_device_placement(self, arg: bool, /) -> None: ...

    def op_counts(self) -> dict[str, Any]: ...

    def copy_counts(self) -> list[Any]: ...

    def explain(self, op: str, inputs: Sequence[Tensor], transpose_a: bool, transpose_b: bool, cast_to: str | None) -> dict[str, Any]: ...

def parse_bytes(text: str) -> int:
    """Reads a size as the command does: "2GiB", "512M"."""

def format_bytes(bytes: int) -> str:
    """Writes a size as the command does."""

class Memory:
    """The memory of one logical device; lgpu.LogicalMemory is made of it."""

    @overload
    def __init__(self, memory_limit: int | None, guarantee: int, preallocate: bool, physical_device: str, lease: str, device_of_lease: int, lease_name: str, endpoint: str, allocation_timeout_ms: int | None, log_sink: object) -> None: ...

    @overload
    def __init__(self, context: Context, device: str) -> None: ...

    def allocate(self, nbytes: int, stream: int, alignment: int, tag: str, timeout_ms: int | None) -> int: ...

    def free(self, address: int, stream: int) -> None: ...

    def use_on(self, address: int, stream: int) -> None: ...

    def forget_stream(self, stream: int) -> None: ...

    def find(self, address: int) -> int: ...

    def live_blocks(self) -> tuple[Any, ...]: ...

    def stats(self) -> dict[str, Any]: ...

    def snapshot_json(self) -> str: ...

    def trim(self) -> int: ...

    def resize(self, memory_limit: int, guarantee: int | None) -> None: ...

    def close(self) -> None: ...

    def retire(self) -> None:
        """Lets the memory go, with blocks that are live."""

    @property
    def cuda_device(self) -> int: ...

    @property
    def device(self) -> dict[str, Any]: ...

    @property
    def lease(self) -> str: ...

    @property
    def lease_name(self) -> str: ...

class Scope:
    """What a with statement asks of ops, and the scopes around it."""

    def __init__(self, context: object, asks_for_device: bool, device: str | None, policy: str | None, outer: object | None) -> None: ...

    @property
    def outer(self) -> object: ...

def add(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise, with broadcasting."""

def subtract(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise, with broadcasting."""

def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise, with broadcasting."""

def divide(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise, with broadcasting; floating types."""

def relu_grad(gradients: Tensor, features: Tensor) -> Tensor:
    """The gradients where the features are above 0, else 0."""

def tanh_grad(y: Tensor, gradients: Tensor) -> Tensor:
    """The gradient of tanh: gradients * (1 - y * y), with y = tanh(x)."""

def negative(input: Tensor) -> Tensor:
    """The elements with their signs changed."""

def relu(input: Tensor) -> Tensor:
    """The larger of each element and 0."""

def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent of each element; floating types."""

def identity(input: Tensor) -> Tensor:
    """A copy on the device of the scope."""

def shape_of(input: Tensor) -> Tensor:
    """The shape as an int32 tensor: the op Shape."""

def size_of(input: Tensor) -> Tensor:
    """The number of elements as an int32 tensor: the op Size."""

def rank_of(input: Tensor) -> Tensor:
    """The number of dimensions as an int32 tensor: the op Rank."""

def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """[m,k] x [k,n] -> [m,n], both of one element type."""

def add_n(inputs: Sequence[Tensor]) -> Tensor:
    """
    The elementwise sum of one or more tensors of one shape and element type.
    """

def transpose(input: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """
    Dimension i of the result is dimension perm[i] of the input; without perm their order is reversed.
    """

def concat(inputs: Sequence[Tensor]) -> Tensor:
    """The tensors behind one another along their first dimension."""

def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape of as many; the memory is shared."""

def slice_rows(input: Tensor, begin: int, count: int) -> Tensor:
    """
    count rows of the first dimension, from row begin on; the memory is shared.
    """

def fill(shape: Sequence[int], value: Tensor) -> Tensor:
    """A tensor of that shape with the one element of value everywhere."""

def reduce_sum(input: Tensor, axis: SupportsIndex | Sequence[SupportsIndex] | None = None, keepdims: bool = False) -> Tensor:
    """The sum over the dimensions in axis, or over all."""

def reduce_mean(input: Tensor, axis: SupportsIndex | Sequence[SupportsIndex] | None = None, keepdims: bool = False) -> Tensor:
    """The mean over the dimensions in axis, or over all."""

def sparse_softmax_cross_entropy_with_logits(labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """
    The loss of each row, and its gradient by the logits [rows,classes]; labels [rows] are int32 or int64.
    """

def cast(input: Tensor, dtype: Any) -> Tensor:
    """
    The same values in another element type: a name, or what numpy.dtype takes.
    """

def copy_to_device(input: Tensor, device: str) -> Tensor:
    """The tensor on that device: itself, or a copy; no scope has a say."""

def from_capsule(context: Context, capsule: object) -> Tensor:
    """A tensor with a copy of what a DLPack capsule holds, which is used up."""

def from_cuda(context: Context, array: object, cuda_device: int) -> Tensor:
    """
    A tensor with a copy of a DLPack producer's array on that card, made on the card.
    """

class MirroredVariable:
    """A value on the device of each replica, the same on all of them."""

    def value(self, replica: int = 0) -> Tensor:
        """The value of a replica."""

class PerReplica:
    """One tensor for each replica."""

    def __init__(self, values: Sequence[Tensor]) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, arg: int, /) -> Tensor: ...

    @property
    def values(self) -> list[Tensor]:
        """The tensors, by replica."""

class Replica:
    """What a step sees of the replica that runs it, while it runs."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def count(self) -> int:
        """How many replicas there are."""

    @property
    def device(self) -> str:
        """The full name of its device."""

    def all_reduce(self, op: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """
        The "sum" or "mean" of each tensor over all replicas, each of which calls this equally often.
        """

    def read(self, variable: MirroredVariable) -> Tensor:
        """This replica's value."""

    def assign(self, variable: MirroredVariable, value: Tensor) -> None:
        """Sets this replica's value."""

    def loss_weight(self, batch: PerReplica) -> float:
        """
        What the mean loss over this replica's part counts in the sum over all replicas.
        """

class MirroredProcesses:
    """The processes that form one strategy: see lgpu.distribute.Processes."""

    def __init__(self, rank: int, count: int, meeting: str, timeout_ms: int) -> None: ...

class MirroredStrategy:
    """Runs steps on several logical devices at once."""

    def __init__(self, context: object, devices: Sequence[str], processes: MirroredProcesses | None = None) -> None: ...

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""

    @property
    def devices(self) -> list[str]:
        """Full names, by replica."""

    def run(self, step: Callable[[Replica], None]) -> None: ...

    def variable(self, initial: Tensor) -> MirroredVariable:
        """A variable with this value on every device."""

    def split(self, batch: Tensor) -> PerReplica:
        """Parts of a batch by its rows, each on its replica's device."""

    def broadcast(self, value: Tensor) -> PerReplica:
        """The value on every device."""

    def reduce(self, op: str, values: PerReplica) -> Tensor:
        """The "sum" or "mean" of the values, on the device of replica 0."""

    def gather(self, values: PerReplica) -> Tensor:
        """The values behind one another, on the device of replica 0."""

def glorot_uniform(context: Context, shape: Sequence[int], seed: int) -> Tensor: ...

def zeros(context: Context, shape: Sequence[int]) -> Tensor: ...

def dense(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """x times kernel, plus bias."""

def dense_grad(x: Tensor, kernel: Tensor, output: Tensor, of_x: bool = True) -> tuple[Tensor | None, Tensor, Tensor]:
    """
    The gradients by x (None unless of_x), kernel and bias; output is the loss's gradient by what dense returned.
    """

def mean_squared_error(replica: Replica, predictions: Tensor, targets: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """
    The mean of the squared differences, and its gradient by the predictions.
    """

def sparse_categorical_crossentropy(replica: Replica, logits: Tensor, labels: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """The mean cross entropy of the rows, and its gradient by the logits."""

class SGD:
    """Keras' SGD; keeps the velocity of each variable."""

    def __init__(self, strategy: MirroredStrategy, learning_rate: float = 0.01, momentum: float = 0.0) -> None: ...

    def apply(self, replica: Replica, variables: Sequence[MirroredVariable], gradients: Sequence[Tensor]) -> None:
        """
        Within a step, with summed gradients: a new value for this replica's copy of each variable.
        """

def torch_find_errors(libraries: Sequence[str]) -> None:
    """Finds PyTorch's out-of-memory error in its loaded libraries."""

def torch_use(device: int, memory: Memory) -> None:
    """lgpu_torch_malloc gives this memory for a CUDA device."""

def torch_leave(device: int) -> None:
    """
    lgpu_torch_malloc gives memory for the device no more. After torch_use.
    """

def torch_take_pool(memory: Memory) -> int:
    """The number of a pair of functions for a MemPool."""

def torch_leave_pool(pool: int) -> None:
    """The functions give no more memory. After torch_take_pool."""
