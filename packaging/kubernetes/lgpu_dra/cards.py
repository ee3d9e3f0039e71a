"""GPUs as devices of a ResourceSlice. Arithmetic alone."""

from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

MEMORY = "memory"


def device_name(card_uuid):
    """A DNS label that stays the card's over restarts of node and lgpud."""
    return card_uuid.lower()


def memory_of(card, overhead):
    """Bytes that leases of this card can have, in whole chunks."""
    left = card["total_bytes"] - card["reserve_bytes"] - overhead
    return max(0, left // card["granularity_bytes"] * card["granularity_bytes"])


def size_of(quantity):
    """Bytes of a Kubernetes quantity such as "8Gi"."""
    size = parse_quantity(quantity)
    if size != size.to_integral_value():
        raise ValueError(f"{quantity} is not a whole number of bytes")
    return int(size)


def quantity_of(size):
    """As the API server writes it: the largest binary unit that divides it."""
    for power, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def device_of(card, overhead):
    """The device that the scheduler sees, or None: nothing of the card can be had."""
    size = memory_of(card, overhead)
    if not card["served"] or size == 0:
        return None
    step, whole = quantity_of(card["granularity_bytes"]), quantity_of(size)
    attributes = {"uuid": client.V1DeviceAttribute(string=card["uuid"]),
                  "productName": client.V1DeviceAttribute(string=card["name"][:64]),
                  "index": client.V1DeviceAttribute(int=card["index"]),
                  "simulated": client.V1DeviceAttribute(bool=card["simulated"])}
    if card.get("pci_bus_id"):
        attributes["pciBusID"] = client.V1DeviceAttribute(string=card["pci_bus_id"])
    # A claim that names no amount gets the whole card: less would be a guess.
    policy = client.V1CapacityRequestPolicy(
        default=whole, valid_range=client.V1CapacityRequestPolicyRange(min=step, max=whole, step=step))
    return client.V1Device(name=device_name(card["uuid"]), allow_multiple_allocations=True, attributes=attributes,
                           capacity={MEMORY: client.V1DeviceCapacity(value=whole, request_policy=policy)})
