"""Claims become managed leases: prepare, unprepare, and the end of leftover leases.

A claim's allocated devices have a lease each: `k8s-UID` on the card and of the size that the scheduler chose, made by a request
whose id is the claim's UID, so that a repetition changes nothing. A CDI file in a folder that the container runtime reads gives
the lease's own directory to the containers of the claim, and has the node's lgpu-hook limit programs that know nothing of lgpu."""

import contextlib
import json
import logging
import os
import pathlib
import re
import threading

from lgpu_dra import cards
from lgpu_dra.api import ApiError, ApiSilent
from lgpu_dra.leases import ALREADY_EXISTS, LeaseError

log = logging.getLogger(__name__)

CDI_KIND = "lgpu.io/lease"
NAME = "k8s-"
# Labels of a lease. A value has at most 63 characters; a claim's name has up to 253.
UID, NAMESPACE, CLAIM = "k8s.uid", "k8s.namespace", "k8s.claim"
_PART = 63
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")


class ClaimError(Exception):
    """Why a claim cannot be prepared; the text goes into the events of its pod."""


def _labels_of(claim):
    labels = {UID: claim.uid, NAMESPACE: claim.namespace}
    for start in range(0, len(claim.name), _PART):
        labels[CLAIM if start == 0 else f"{CLAIM}.{start // _PART}"] = claim.name[start:start + _PART]
    return labels


def _claim_of(labels):
    """(namespace, name, uid) of the claim that a lease was made for, or None: another one's lease."""
    if UID not in labels or NAMESPACE not in labels or CLAIM not in labels:
        return None
    name, part = labels[CLAIM], 1
    while f"{CLAIM}.{part}" in labels:
        name += labels[f"{CLAIM}.{part}"]
        part += 1
    return labels[NAMESPACE], name, labels[UID]


class Driver:
    """Thread-safe. `card_cdi`: for real GPUs, also the CDI device of this name, in which {uuid} and {index} are the card's."""

    def __init__(self, name, node, leases, api, cdi_folder, overhead=0, card_cdi=""):
        self.name, self._node, self._leases, self._api = name, node, leases, api
        self._cdi, self._overhead, self._card_cdi = pathlib.Path(cdi_folder), overhead, card_cdi
        self._mutex = threading.Lock()
        self._busy = {}  # claims in work: uid -> [lock, users]

    @contextlib.contextmanager
    def _alone(self, uid):
        """One call at a time for a claim."""
        with self._mutex:
            entry = self._busy.setdefault(uid, [threading.Lock(), 0])
            entry[1] += 1
        try:
            with entry[0]:
                yield
        finally:
            with self._mutex:
                entry[1] -= 1
                if entry[1] == 0:
                    del self._busy[uid]

    # --- prepare

    def prepare(self, claim):
        """[(request, pool, device, CDI ids)]. ClaimError, LeaseError, ApiError."""
        if not _UID.fullmatch(claim.uid):
            raise ClaimError(f"claim {claim.namespace}/{claim.name} has the UID {claim.uid!r}, which is not a UID of Kubernetes")
        with self._alone(claim.uid):
            results = self._results(claim)
            served = {cards.device_name(card["uuid"]): card for card in self._leases.snapshot()[0]}
            prepared = []
            for index, result in enumerate(results):
                card = served.get(result.device)
                if card is None or not card["served"]:
                    raise ClaimError(f"lgpud on {self._node} does not serve the GPU {result.device} that claim "
                                     f"{claim.namespace}/{claim.name} was given")
                prepared.append(self._prepare_one(claim, index, result, card))
            return prepared

    def _results(self, claim):
        """The scheduler's results for the claim on this node's cards."""
        what = f"claim {claim.namespace}/{claim.name}"
        found = self._api.claim(claim.namespace, claim.name)
        if found is None:
            raise ClaimError(f"{what} is not there any more")
        if found.metadata.uid != claim.uid:
            raise ClaimError(f"{what} was deleted and made again: its UID is {found.metadata.uid}, not {claim.uid}")
        results = self._given(found)
        if not results:
            raise ClaimError(f"{what} has no GPU memory of node {self._node} allocated")
        requests = [result.request for result in results]
        twice = next((request for request in requests if requests.count(request) > 1), None)
        if twice is not None:
            raise ClaimError(f"request {twice} of {what} has several GPUs; a container has one lease, which is memory of one GPU: "
                             "write a request for each container")
        if any(result.admin_access for result in results):
            raise ClaimError(f"{what} asks for adminAccess, which lgpu does not have")
        return results

    def _given(self, found):
        allocation = found.status.allocation if found.status else None
        devices = allocation.devices if allocation else None
        return [result for result in (devices.results if devices else None) or []
                if result.driver == self.name and result.pool == self._node]

    def _prepare_one(self, claim, index, result, card):
        size, is_named = self._size(claim, result, card)
        request_id = _request_id(claim.uid, index)
        labels = _labels_of(claim)
        try:
            lease = self._leases.create(NAME + request_id, request_id, card["uuid"], size, labels)
        except LeaseError as error:
            if error.code != ALREADY_EXISTS:
                raise
            # The lease has the same name and is not of this request: left by hand, or by another driver.
            self._leases.remove(NAME + request_id)
            lease = self._leases.create(NAME + request_id, request_id, card["uuid"], size, labels)
        device = lease["devices"][0]
        is_of_size = not is_named or device["memory_limit_bytes"] == size
        if device["card_uuid"] != card["uuid"] or not (is_of_size or self._is_in_use(lease)):
            # The lease is of an earlier allocation of the claim that was never unprepared. A pod that runs on
            # this card keeps it.
            self._leases.remove(lease["id"])
            lease = self._leases.create(NAME + request_id, request_id, card["uuid"], size, labels)
        self._write(self._record(claim.uid), f"{claim.namespace}/{claim.name}\n")
        self._write_cdi(lease)
        ids = [f"{CDI_KIND}={lease['name']}"]
        if self._card_cdi and not card["simulated"]:
            ids.append(self._card_cdi.format(uuid=card["uuid"], index=card["index"]))
        # kubelet knows a subrequest, "request/subrequest", by its request.
        return result.request.split("/")[0], result.pool, result.device, ids

    def _size(self, claim, result, card):
        """(bytes, whether the scheduler named them). Without consumable capacity in the cluster a claim has the card for itself."""
        quantity = (result.consumed_capacity or {}).get(cards.MEMORY)
        most = cards.memory_of(card, self._overhead)
        if quantity is None:
            return most, False
        try:
            size = cards.size_of(quantity)
        except ValueError as error:
            raise ClaimError(f"claim {claim.namespace}/{claim.name}: {error}") from error
        if not 0 < size <= most:
            raise ClaimError(f"claim {claim.namespace}/{claim.name} was given {cards.quantity_of(size)} of GPU {result.device}, of "
                             f"which leases can have {cards.quantity_of(most)}")
        return size, True

    def _is_in_use(self, lease):
        return any(each["sessions"] for each in self._leases.snapshot()[1] if each["id"] == lease["id"])

    # --- CDI files, and beside them the claim's name, of which the container runtime reads nothing

    def _cdi_file(self, lease_name):
        return self._cdi / f"lgpu-{lease_name}.json"

    def _record(self, uid):
        return self._cdi / f"lgpu-{NAME}{uid}.claim"

    def _files(self, uid):
        return [*self._cdi.glob(f"lgpu-{NAME}{uid}.json"), *self._cdi.glob(f"lgpu-{NAME}{uid}.*.json")]

    def _write_cdi(self, lease):
        specification = self._leases.cdi(lease["id"])
        self._write(self._cdi_file(lease["name"]), json.dumps(specification, indent=2) + "\n")

    def _write(self, file, text):
        self._cdi.mkdir(parents=True, exist_ok=True)
        # The runtime reads files that end with .json, whole ones only.
        partial = file.with_name(file.name + ".partial")
        partial.write_text(text)
        os.replace(partial, file)

    # --- unprepare

    def unprepare(self, claim):
        """Ends the claim's leases, if it has any. LeaseError, also if the memory is not back yet: kubelet repeats the call."""
        if not _UID.fullmatch(claim.uid):
            return
        with self._alone(claim.uid):
            self._end(claim.uid)

    def _end(self, uid):
        """Ends the claim's leases and removes its files."""
        files = self._files(uid)
        named = {file.name.removeprefix("lgpu-").removesuffix(".json") for file in files}
        for name in sorted({lease["name"] for lease in self._leases_of(uid)} | named | {NAME + uid}):
            self._leases.remove("--request-id", name.removeprefix(NAME))
        # A claim's container cannot start any more, so the files go last.
        for file in [*files, self._record(uid)]:
            file.unlink(missing_ok=True)

    def _leases_of(self, uid):
        return [lease for lease in self._leases.snapshot()[1] if lease.get("labels", {}).get(UID) == uid]

    # --- leftovers

    def tend(self):
        """Ends leases and removes files of claims that are gone, and writes files that are missing. Changes nothing while lgpud or
        the API server does not answer. Returns an error for each claim that failed; the other claims are done. LeaseError."""
        uids = {lease["labels"][UID] for lease in self._leases.snapshot()[1] if _claim_of(lease.get("labels", {}))}
        for file in [*self._cdi.glob(f"lgpu-{NAME}*.json"), *self._cdi.glob(f"lgpu-{NAME}*.claim")]:
            uids.add(file.name.removeprefix(f"lgpu-{NAME}").split(".")[0])
        failures = []
        for uid in sorted(uids):
            try:
                with self._alone(uid):
                    self._tend_claim(uid)
            except ApiSilent as error:  # every other claim would wait for the same timeout
                return [*failures, str(error)]
            except (ApiError, LeaseError, OSError) as error:
                failures.append(f"the claim of UID {uid}: {error}")
        return failures

    def _tend_claim(self, uid):
        leases = [lease for lease in self._leases_of(uid) if _claim_of(lease["labels"])]
        claim = _claim_of(leases[0]["labels"])[:2] if leases else self._recorded(uid)
        if claim is None:
            for file in self._files(uid):
                log.info("removing %s: no lease and no claim has it", file.name)
                file.unlink(missing_ok=True)
            return
        found = self._api.claim(*claim)
        if found is None or found.metadata.uid != uid or not self._given(found):
            log.info("ending leases and files of %s%s: claim %s/%s is gone, or has no memory here", NAME, uid, *claim)
            self._end(uid)
            return
        # A file without a lease stays: lgpud may keep the lease until its card is served again.
        for lease in leases:
            if not self._cdi_file(lease["name"]).exists():
                self._write_cdi(lease)
        if not self._record(uid).exists():
            self._write(self._record(uid), "/".join(claim) + "\n")

    def _recorded(self, uid):
        """(namespace, name) of the claim that the files were written for, or None."""
        try:
            namespace, _, name = self._record(uid).read_text().strip().partition("/")
        except FileNotFoundError:
            return None
        return (namespace, name) if namespace and name else None

    def devices(self):
        """The devices of this node's cards, for the scheduler."""
        found, _ = self._leases.snapshot()
        return [device for device in (cards.device_of(card, self._overhead) for card in found) if device is not None]

    def publish(self, devices):
        """Writes the devices to the node's slice. With no device, the scheduler places no new claim here. True: the slice has
        changed."""
        return self._api.publish(devices)


def _request_id(uid, index):
    return uid if index == 0 else f"{uid}.{index}"
