#ifndef LGPU_CLIENT_DRIVER_LEASE_SESSION_H_
#define LGPU_CLIENT_DRIVER_LEASE_SESSION_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/driver/light_locks.h"
#include "client/driver/steady_condition.h"
#include "client/driver/tick_page.h"
#include "client/link/handshake.h"
#include "client/link/requests.h"
#include "proto/wire/frame_channel.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::shim {

using wire::ChargeKind;

/// A LeaseSession is the shim's session with lgpud: it attaches to one lease and charges device memory that
/// the program takes from the driver (docs/protocol.md, Charging). It has no thread: it connects at the first
/// call that needs the daemon, and a restarted daemon is joined again by the next such call, or by one that
/// asks for figures.
///
/// Thread-safety: all methods, from any thread. In a forked child only Abandon and NoteExit.
class LeaseSession {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::string directory;                        // the daemon's runtime directory
    std::string lease;                            // LGPU_LEASE; empty: there is none, and nothing is granted
    std::string client;                           // for people: "libcuda shim 0.1.0"
    std::chrono::milliseconds memory_wait{2000};  // how long charges may wait for the card in a row
    std::chrono::milliseconds wait_pause{5000};   // after waits in vain of this length charges do not wait
    /// LeaseSession calls it after each joining with the word where lgpud writes its tick. The caller
    /// compares that word and calls NoteUse. Null: uses of GPUs are not noted.
    void (*watch_tick)(const std::atomic<std::uint64_t>* tick) = nullptr;
    bool makes_no_use = false;  // of a GPU, by itself
  };
  explicit LeaseSession(Options options) : options_(std::move(options)) {
    if (options_.lease.empty()) state_ = State::kOver;
    member_.makes_no_use = options_.makes_no_use;
  }

  static constexpr int kNoCard = -1;
  static constexpr int kMaxCards = SharedCharges::kMaxCards;

  /// Connects and attaches, if that has not been done. False: there is no daemon now, or no such lease.
  bool Join();
  /// The lease's card of that UUID (16 bytes), or kNoCard. Joins.
  int CardOf(const char (&uuid)[16]);
  /// The same of "GPU-10fa4e00-..." or "MIG-...".
  int CardOf(std::string_view uuid);
  /// The UUIDs of the lease's cards, each once, in the lease's order. Joins. Nothing: not attached.
  std::optional<std::vector<std::string>> CardUuids();
  /// The same; an lgpud that is away is awaited for `memory_wait`.
  std::optional<std::vector<std::string>> AwaitCardUuids();
  /// CUDA_VISIBLE_DEVICES names a GPU that is not the lease's: the daemon makes an event of it. `entry` is
  /// what the variable says.
  void TellForeignCard(std::string_view entry);

  /// Counts `bytes` of `card`; false: the daemon refused, or cannot be reached in time. The daemon is asked
  /// each time, so it grants freed memory at once and makes an event of each refusal. It may wait for the
  /// card for as long as WaitLeft says. `call` names the driver's call. kNoCard is refused.
  /// `driver_refusals`: how often the driver refused this memory after a charge, which was given back; above
  /// 0 the allowance is not used, the daemon is asked (docs/protocol.md).
  bool Charge(int card, std::uint64_t bytes, ChargeKind kind, const char* call,
              std::uint32_t driver_refusals = 0);
  /// Another process may have opened `bytes` of `card`, or may not any more (wraps for negative ones). They
  /// stay charged after this process while a process of the lease has another process's memory open.
  void CountExported(int card, std::uint64_t bytes);
  /// This process has opened memory of another one (1), or closed it (wraps for -1).
  void CountImports(std::uint64_t pieces);
  /// The heaps of malloc in kernels have so many bytes now, in all contexts together.
  void NoteKernelHeap(std::uint64_t bytes);
  /// The driver refused `bytes` that were charged twice, and are not any more.
  void TellRefused(int card, std::uint64_t bytes, ChargeKind kind, const char* call);
  /// True where Charge would need no daemon.
  bool IsInAllowance(int card, std::uint64_t bytes) const;
  /// Whether limit and card seem to have so much left: by the daemon's figures as they are, and where those
  /// say no, after it has counted what this process gave back.
  bool SeemsFree(int card, std::uint64_t bytes);
  /// The driver has the memory back, or never gave it.
  void Uncharge(int card, std::uint64_t bytes, ChargeKind kind);

  /// Guards the charges of a card in the page. A caller with books of its own guards them with it as well, so
  /// that a small allocation passes one lock. No call of the session is made with it held but the next two.
  LightMutex& ChargesLock(int card) { return charges_locks_.Of(static_cast<std::size_t>(card)); }
  /// Charges without the daemon. False: the allowance is smaller, or there is no session yet.
  bool TakeFromAllowance(int card, std::uint64_t bytes, ChargeKind kind);
  /// Bytes that were uncharged and do not stay in the allowance.
  struct Excess {
    std::uint64_t bytes = 0;
    std::uint64_t generation = 0;  // of the connection whose daemon counts them
  };
  /// Uncharges into the allowance. The caller calls TellExcess when it has left the lock.
  Excess PutBack(int card, std::uint64_t bytes, ChargeKind kind);
  void TellExcess(int card, ChargeKind kind, const Excess& excess) {
    if (excess.bytes != 0) SendExcess(card, kind, excess);
  }

  struct Figures {
    std::uint64_t limit = 0, free = 0;
  };
  /// Whose figures: those of a process that may have charged without the daemon, or of one that reads alone.
  enum class Reader { kCharges, kReadsAlone };
  /// The lease's limit and free bytes on the card; bytes that this process gave back count as free. Those
  /// of a daemon that was started again, as soon as it can be joined; until then the last ones, as a killed
  /// daemon left them. Nothing: not attached.
  std::optional<Figures> FiguresOf(int card, Reader reader = Reader::kCharges);

  /// The process has used a GPU in lgpud's second `tick`. Nothing happens without a session, and in a child,
  /// however it was made.
  void NoteUse(std::uint64_t tick);
  /// The process has begun to end by itself: lgpud need not report a lost program. Nothing happens in a
  /// child, however it was made.
  void NoteExit();

  /// In a forked child: closes the parent's connection, silently. The object is of no use after that.
  void Abandon();

 private:
  static constexpr std::size_t kKinds = CardCharges::kKinds;
  enum class State { kFresh, kJoining, kJoined, kAway, kOver };
  struct Card {
    std::string uuid;
    std::vector<std::uint64_t> devices;  // ids of the lease's logical devices on it
  };
  struct Request {
    std::uint64_t id = 0;
    std::uint64_t generation = 0;  // of the connection that it was sent by
    int card = 0;
    std::uint64_t bytes = 0;
    ChargeKind kind{};
    std::uint32_t driver_refusals = 0;
    std::chrono::milliseconds may_wait{0};  // for the card
    Clock::time_point more_until{};         // as the daemon said
    bool is_done = false, is_granted = false;
    bool is_abandoned = false;  // its caller has given up; a late grant is given back
  };
  /// A WaitRow is the time that charges of a card waited in a row and were refused, at most `memory_wait`. A
  /// grant does not end the row: small requests are granted between the large ones that the card has no room
  /// for.
  struct WaitRow {
    std::chrono::milliseconds in_vain{0};
    Clock::time_point ends{};
  };
  using Lock = std::unique_lock<std::mutex>;

  /// Attached, or joined again, by this thread or another one. False: over, or not by the deadline.
  bool EnsureJoined(Lock& lock, Clock::time_point deadline);
  enum class Joining { kDone, kAgain, kNever };
  Joining Connect(Clock::time_point deadline);
  static Joining JoiningOf(const link::Reply& reply);
  Joining Attach(link::Handshake& handshake, Clock::time_point deadline);
  /// The charges of one card as the page has them, which this process alone writes.
  struct Totals {
    std::array<std::uint64_t, kKinds> by_kind{};
    std::uint64_t exported = 0;
  };
  std::vector<Totals> ReadTotals() const;
  /// Writes the charges into a page that has none; the frame that tells the daemon of them.
  wire::Frame WriteTotals(const std::vector<Totals>& totals);
  /// How long a charge of `card` may wait for the card now. Charges that wait one after the other wait at
  /// most `memory_wait` in all, and then not at all for `wait_pause`; each of several threads that wait at
  /// the same time may wait so long. This bounds the wait of a program that tries smaller sizes until one
  /// fits, and of one that tries the same size again.
  std::chrono::milliseconds WaitLeft(int card);
  void NoteRefusal(const Request& request, const wire::Refusal& refusal);
  bool SendCharge(const Request& request, const char* call, Clock::time_point deadline);
  /// Until it is done or can have no answer any more.
  void Await(Lock& lock, std::uint64_t request, Clock::time_point deadline);
  /// Whether its answer can still come: another thread may have joined the next daemon meanwhile.
  bool IsOfNow(const Request& request) const {
    return state_ == State::kJoined && request.generation == generation_.load();
  }
  class Waiting;
  /// What came of a Receive.
  void Take(const PlainStatus& status, const wire::Frame& frame);
  void TakeCharged(const wire::Charged& charged);
  void Lose();
  /// Whether the session's descriptor is its socket still. A program may close all descriptors that it does
  /// not know, and have another file under the number. Then the session is lost, and that file is left alone.
  bool HasItsSocket();
  bool IsItsSocket(int descriptor) const;
  bool Send(const wire::Frame& frame, Clock::time_point deadline);
  /// Joins a daemon that was started again since; briefly, and not at each call while there is none. False:
  /// the session is over for good.
  bool FollowDaemon();
  /// Waits until the daemon has counted the earlier Uncharges, and has written its figures anew.
  void AwaitFigures();
  /// The figures as the pages have them now.
  Figures ReadFigures(int card) const;
  /// Sends a frame for a request that has no bytes of its own, and waits until it is answered.
  void SendAndAwait(Lock& lock, std::uint64_t request, const wire::Frame& frame, Clock::time_point deadline);
  void SendExcess(int card, ChargeKind kind, const Excess& excess);
  /// Under the card's lock. Wraps for negative ones.
  void Count(int card, ChargeKind kind, std::uint64_t bytes);
  CardCharges& Words(int card) const { return member_.page->charges.cards[static_cast<std::size_t>(card)]; }

  const Options options_;
  std::atomic<bool> is_attached_{false};  // once: process_, cards_ and member_ are there, for good
  pid_t process_ = 0;                     // that attached
  std::vector<Card> cards_;
  link::Membership member_;
  TickPage tick_page_;
  // A card's one is held while its charges in the page change, the first card's one while the two words below
  // do; all are held while the charges go to the page of a new daemon.
  LightMutexes<kMaxCards> charges_locks_;
  std::atomic<std::uint64_t> imports_{0}, kernel_heap_{0};
  std::atomic<std::uint64_t> generation_{0};  // of the connection
  std::atomic<int> socket_{-1};
  std::atomic<std::uint64_t> socket_device_{0}, socket_inode_{0};  // of `socket_`
  std::atomic<bool> has_uncharged_{false};                         // since the daemon's last answer

  std::mutex mutex_;  // guards the rest
  SteadyCondition changed_;
  State state_ = State::kFresh;
  wire::FrameChannel channel_;
  Clock::time_point next_look_{};  // for a new daemon, by FiguresOf
  link::Requests<Request> requests_;
  std::array<WaitRow, kMaxCards> wait_rows_;
  std::uint64_t late_grants_ = 0;  // given back: their callers had given up
};

// Inlined: each small allocation goes through them.

inline void LeaseSession::Count(int card, ChargeKind kind, std::uint64_t bytes) {
  std::atomic<std::uint64_t>& word = Words(card).by_kind[static_cast<std::size_t>(kind) - 1];
  word.store(word.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

inline bool LeaseSession::TakeFromAllowance(int card, std::uint64_t bytes, ChargeKind kind) {
  if (!is_attached_.load(std::memory_order_acquire)) return false;
  std::atomic<std::uint64_t>& free = Words(card).free;
  std::uint64_t now = free.load(std::memory_order_relaxed);
  do {
    if (now < bytes) return false;
  } while (!free.compare_exchange_weak(now, now - bytes));
  Count(card, kind, bytes);
  return true;
}

inline bool LeaseSession::IsInAllowance(int card, std::uint64_t bytes) const {
  return is_attached_.load(std::memory_order_acquire) && card != kNoCard && Words(card).free.load() >= bytes;
}

inline LeaseSession::Excess LeaseSession::PutBack(int card, std::uint64_t bytes, ChargeKind kind) {
  Count(card, kind, std::uint64_t{0} - bytes);
  CardCharges& words = Words(card);
  std::uint64_t now = words.free.fetch_add(bytes) + bytes;
  const std::uint64_t keep = words.keep.load(std::memory_order_relaxed);
  while (now > keep && !words.free.compare_exchange_weak(now, keep)) {
  }
  return {.bytes = now > keep ? now - keep : 0, .generation = generation_.load()};
}

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_LEASE_SESSION_H_
