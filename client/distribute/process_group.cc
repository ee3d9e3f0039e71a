#include "client/distribute/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/interrupt.h"
#include "kernels/text.h"
#include "lgpu/bytes.h"
#include "lgpu/status.h"

namespace lgpu::internal {
namespace {

constexpr std::uint64_t kAlignment = 64;
// Of a message's text; a frame has 64 KiB.
constexpr std::size_t kMostText = std::size_t{48} << 10;
// For a last message to a process that does not read.
constexpr std::chrono::milliseconds kLastPatience{200};
constexpr std::uint64_t kLeastRegion = std::uint64_t{64} << 10;

std::uint64_t RoundUpTo(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::uint64_t BytesOf(const Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.shape().elements()) * ElementBytes(tensor.dtype());
}

/// The values that must be equal in all processes, as text: "sum;float[2,3];float[3]".
std::string Signature(std::span<const Tensor> tensors, bool add) {
  std::string text = add ? "sum" : "copy";
  for (const Tensor& tensor : tensors) text += Cat(";", DTypeName(tensor.dtype()), tensor.shape().ToString());
  if (text.size() <= kMostText) return text;
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a, of what is cut off too
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return Cat(text.substr(0, kMostText), ";...", hash);
}

/// The first part in which two signatures differ: "float[2,3]", or "nothing".
std::pair<std::string, std::string> FirstDifference(std::string_view first, std::string_view other) {
  const auto take = [](std::string_view& rest) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    std::string part(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part.empty() ? std::string("nothing") : part;
  };
  std::pair<std::string, std::string> parts;
  do {
    parts = {take(first), take(other)};
  } while (parts.first == parts.second && parts.first != "nothing");
  return parts;
}

}  // namespace

std::string ProcessGroup::Encode(const Message& message) {
  std::string bytes(1, static_cast<char>(message.kind));
  const auto code = static_cast<std::uint32_t>(message.code);
  bytes.append(reinterpret_cast<const char*>(&message.value), sizeof(message.value));
  bytes.append(reinterpret_cast<const char*>(&code), sizeof(code));
  return bytes + message.text.substr(0, kMostText + 64);
}

absl::StatusOr<ProcessGroup::Message> ProcessGroup::Decode(std::string_view bytes) {
  Message message;
  std::uint32_t code = 0;
  constexpr std::size_t kHeader = 1 + sizeof(message.value) + sizeof(code);
  if (bytes.size() < kHeader ||
      static_cast<std::uint8_t>(bytes[0]) > static_cast<std::uint8_t>(Kind::kBroken)) {
    return absl::InternalError(
        "a message of another process cannot be read; are all of one version of lgpu?");
  }
  message.kind = static_cast<Kind>(bytes[0]);
  std::memcpy(&message.value, bytes.data() + 1, sizeof(message.value));
  std::memcpy(&code, bytes.data() + 1 + sizeof(message.value), sizeof(code));
  message.code = absl::Status(static_cast<absl::StatusCode>(code), "").code();
  message.text = std::string(bytes.substr(kHeader));
  return message;
}

ProcessGroup::Message ProcessGroup::Failure(const absl::Status& status) {
  return {.kind = Kind::kFail, .code = status.code(), .text = std::string(status.message())};
}

absl::StatusOr<ProcessGroup::Message> ProcessGroup::Receive(Peer& peer, TimePoint deadline, UniqueFd* fd) {
  std::string_view bytes;
  wire::Channel::Descriptors beside;
  for (;;) {
    const auto received =
        static_cast<absl::Status>(peer.channel.Receive(bytes, beside, Interrupt::NextQuestion(deadline)));
    if (received.ok()) break;
    if (!absl::IsDeadlineExceeded(received)) return received;
    if (Interrupt::Happened()) return Interrupt::Error();
    if (std::chrono::steady_clock::now() >= deadline) return received;
  }
  if (fd != nullptr && !beside.fds.empty()) *fd = std::move(beside.fds.front());
  return Decode(bytes);
}

absl::Status ProcessGroup::Send(Peer& peer, const Message& message, int fd) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const std::span<const int> fds(&fd, fd >= 0 ? 1 : 0);
  return static_cast<absl::Status>(peer.channel.Send(Encode(message), fds, patience));
}

std::string ProcessGroup::Name(const Peer& peer) {
  return Cat("process ", peer.rank, " (pid ", peer.pid, ")");
}

absl::Status ProcessGroup::StartStep() {
  failure_.reset();
  return broken_.value_or(absl::OkStatus());
}

absl::Status ProcessGroup::Break(absl::Status why) {
  Message message = Failure(why);
  message.kind = Kind::kBroken;
  if (options_.rank == 0) {
    const std::string bytes = Encode(message);
    for (Peer& peer : peers_) {  // one of them may be the one that is gone
      static_cast<void>(peer.channel.SendLast(bytes, std::chrono::steady_clock::now() + kLastPatience));
    }
  }
  peers_.clear();
  failure_ = broken_ = why;
  return why;
}

absl::Status ProcessGroup::BreakInterrupted() {
  return Break(absl::CancelledError(Cat("process ", options_.rank, " (pid ", ::getpid(),
                                        ") was interrupted; this strategy is over, make another one")));
}

absl::Status ProcessGroup::Round(const Message& own) {
  if (broken_) return *broken_;
  if (failure_) return *failure_;
  return options_.rank == 0 ? LeadRound(own) : FollowRound(own);
}

absl::Status ProcessGroup::Compare(const Message& first, const Message& other, const std::string& name) {
  if (other.kind == Kind::kFail) return absl::Status(other.code, Cat(name, ": ", other.text));
  if (first.kind == other.kind && first.value == other.value && first.text == other.text) {
    return absl::OkStatus();
  }
  if (first.kind != other.kind) {
    return absl::FailedPreconditionError(
        Cat(name, other.kind == Kind::kEnd ? " ended its step" : " goes on", " while process 0 ",
            first.kind == Kind::kEnd ? "has ended its step" : "waits in AllReduce",
            "; every replica of every process calls AllReduce equally often"));
  }
  const auto parts = FirstDifference(first.text, other.text);
  return absl::InvalidArgumentError(Cat("the processes reduce different tensors: process 0 has ", parts.first,
                                        " where ", name, " has ", parts.second,
                                        "; shapes and dtypes are equal in all of them"));
}

absl::Status ProcessGroup::LeadRound(const Message& own) {
  const TimePoint deadline = std::chrono::steady_clock::now() + options_.timeout;
  absl::Status status;
  if (own.kind == Kind::kFail) {
    status = absl::Status(own.code, Cat("process 0 (pid ", ::getpid(), "): ", own.text));
  }
  for (Peer& peer : peers_) {
    const absl::StatusOr<Message> message = Receive(peer, deadline);
    if (absl::IsCancelled(message.status())) return BreakInterrupted();
    if (absl::IsDeadlineExceeded(message.status())) {
      return Break(absl::DeadlineExceededError(
          Cat(Name(peer), " did not come to the sum within ", options_.timeout.count(),
              " ms (MirroredProcesses::timeout); this strategy is over, make another one")));
    }
    if (!message.ok()) {
      return Break(
          absl::UnavailableError(Cat(Name(peer), " has ended; this strategy is over, make another one")));
    }
    if (status.ok()) status = Compare(own, *message, Name(peer));
  }
  const std::uint64_t before = sums_.region_bytes();
  if (status.ok() && own.kind == Kind::kOffer) status = MakeRoom(own.value);
  const bool has_grown = sums_.region_bytes() != before;
  Message answer =
      status.ok() ? Message{.kind = Kind::kProceed, .value = sums_.region_bytes()} : Failure(status);
  for (Peer& peer : peers_) {
    if (!Send(peer, answer, status.ok() && has_grown ? sums_.fd() : -1).ok()) {
      return Break(
          absl::UnavailableError(Cat(Name(peer), " has ended; this strategy is over, make another one")));
    }
  }
  if (!status.ok()) failure_ = status;
  return status;
}

absl::Status ProcessGroup::MakeRoom(std::uint64_t bytes) {
  if (bytes <= sums_.region_bytes()) return absl::OkStatus();
  std::uint64_t room = kLeastRegion;
  while (room < bytes) room *= 2;
  return sums_.Make(options_.count, room);
}

absl::Status ProcessGroup::FollowRound(const Message& own) {
  Peer& first = peers_.front();
  const auto gone = [&] {
    return Break(
        absl::UnavailableError(Cat(Name(first), " has ended; this strategy is over, make another one")));
  };
  // Where process 0 has broken the group, its last message says why.
  const bool is_there = Send(first, own).ok();
  // Process 0 may come as late as this one's time allows, and waits as long for the others then.
  const TimePoint deadline = is_there ? std::chrono::steady_clock::now() + 2 * options_.timeout : TimePoint();
  UniqueFd fd;
  const absl::StatusOr<Message> answer = Receive(first, deadline, &fd);
  if (absl::IsCancelled(answer.status())) return BreakInterrupted();
  if (is_there && absl::IsDeadlineExceeded(answer.status())) {
    return Break(absl::DeadlineExceededError(
        Cat(Name(first), " did not answer within ", 2 * options_.timeout.count(),
            " ms (twice MirroredProcesses::timeout); this strategy is over, make another one")));
  }
  if (!answer.ok()) return gone();
  if (answer->kind == Kind::kBroken) return Break(absl::Status(answer->code, answer->text));
  if (answer->kind == Kind::kFail) {
    failure_ = absl::Status(answer->code, answer->text);
    return *failure_;
  }
  if (answer->kind != Kind::kProceed) {
    return Break(absl::InternalError(Cat(Name(first), " answered no round")));
  }
  if (!fd) return absl::OkStatus();
  // A map that fails is told in the next round, as any other error of this process.
  return sums_.Take(std::move(fd), options_.count, answer->value);
}

absl::Status ProcessGroup::Sum(const Context& context, std::vector<Tensor>& tensors) {
  return Exchange(context, tensors, /*add=*/true);
}
absl::Status ProcessGroup::CopyFirst(const Context& context, std::vector<Tensor>& tensors) {
  return Exchange(context, tensors, /*add=*/false);
}

absl::Status ProcessGroup::Exchange(const Context& context, std::vector<Tensor>& tensors, bool add) {
  std::vector<std::uint64_t> offsets;
  std::uint64_t all = 0;
  for (const Tensor& tensor : tensors) {
    offsets.push_back(all);
    all += RoundUpTo(BytesOf(tensor), kAlignment);
  }
  LGPU_RETURN_IF_ERROR(Round({.kind = Kind::kOffer, .value = all, .text = Signature(tensors, add)}));
  if (sums_.region_bytes() < all) {
    return Break(absl::ResourceExhaustedError(
        Cat("process ", options_.rank, " has no map of the shared memory of ", all,
            " bytes (no descriptor or no address space was left); this strategy is over, make another one")));
  }
  absl::Status copied;
  for (std::size_t i = 0; i < tensors.size() && copied.ok(); ++i) {
    if (!add && options_.rank > 0) break;
    copied = tensors[i].CopyToHost(sums_.region(options_.rank) + offsets[i], BytesOf(tensors[i]));
  }
  LGPU_RETURN_IF_ERROR(Round(copied.ok() ? Message{.kind = Kind::kCopied} : Failure(copied)));
  for (std::size_t i = 0; add && i < tensors.size(); ++i) {
    sums_.AddSlice(tensors[i].dtype(), offsets[i], tensors[i].shape().elements(), options_.rank);
  }
  LGPU_RETURN_IF_ERROR(Round({.kind = Kind::kSummed}));
  // Region 0 is written again in the next exchange, which begins with a round.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes(sums_.region(0) + offsets[i], BytesOf(tensors[i]));
    LGPU_ASSIGN_OR_RETURN(tensors[i], context.ConstantBytes(tensors[i].dtype(), tensors[i].shape(), bytes));
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::EndStep(const absl::Status& own) {
  if (failure_) return *failure_;
  absl::Status ended = Round(own.ok() ? Message{.kind = Kind::kEnd} : Failure(own));
  if (own.ok() || ended.code() != own.code()) return ended;
  // The process that failed keeps what belongs to its error: a Refusal, say.
  own.ForEachPayload(
      [&ended](absl::string_view url, const absl::Cord& payload) { ended.SetPayload(url, payload); });
  return ended;
}

}  // namespace lgpu::internal
