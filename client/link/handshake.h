#ifndef LGPU_CLIENT_LINK_HANDSHAKE_H_
#define LGPU_CLIENT_LINK_HANDSHAKE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/plain_status.h"
#include "proto/wire/frame_channel.h"
#include "proto/wire/mapping.h"
#include "proto/wire/pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::link {

using TimePoint = std::chrono::steady_clock::time_point;

/// A Watch can end a wait before its deadline.
class Watch {
 public:
  /// A wait until `deadline` ends at this time at the latest, and asks IsToStop.
  virtual TimePoint NextLook(TimePoint deadline) = 0;
  virtual bool IsToStop() = 0;

 protected:
  ~Watch() = default;
};

/// A Membership is a client's part of its session. A daemon that resumes the session replaces the version and
/// the memory of the pages; the rest stays as the first daemon gave it.
struct Membership {
  std::uint64_t session_id = 0;
  std::string token;
  std::atomic<std::uint32_t> version{0};  // of the protocol, as the last daemon speaks it
  SharedPage<const StatsPage> stats;
  SharedPage<ClientPage> page;
  bool makes_no_use = false;  // the process uses no GPU by itself: each new page says so
};

/// Whether a daemon that refused with this canonical code may answer the same question otherwise later.
bool MayBeAskedAgain(PlainCode code);
/// Whether the next daemon may take up an open session that this frame ends.
bool Passes(const wire::Goodbye& goodbye);

/// A Reply says how a question of a handshake ended.
struct Reply {
  enum class Kind {
    kAnswered,
    kStopped,       // by the Watch
    kSilent,        // no answer in time, or the channel failed: `status`
    kHungUp,        // the daemon closed the connection without a word: `status`
    kGarbled,       // the daemon sent bytes that are no frame: `status`
    kGoodbye,       // the daemon ends the session; `status` has its code and words
    kRefused,       // the daemon refuses the lease; `status` has its code and words
    kCut,           // this process may open no more files, and the answer's were lost
    kStrange,       // a frame that the protocol does not have here
    kOtherVersion,  // the daemon chose a version that the client did not offer
  };
  Kind kind = Kind::kAnswered;
  PlainStatus status = {};

  bool ok() const { return kind == Kind::kAnswered; }
  /// Whether another attempt may have another end. Only a daemon's answer rules that out.
  bool MayBeAskedAgain() const;
};

/// The Hello of this process, which speaks the versions from `oldest` on. An empty `command` becomes the
/// process's own name and arguments.
wire::Hello HelloOf(std::string client, std::uint32_t oldest, std::string command = {});

/// The lease that an answer to Attach attaches the session to.
Reply LeaseOf(wire::Frame& answer, wire::Lease& lease);

/// A Handshake opens a session on a connected channel, or resumes one with the daemon that was started since.
/// It writes a frame and waits for the answer, one question after another:
///
///     Hello               -> Welcome with two pages       Greet, then TakePages
///     Hello with Resume   -> Welcome with two new pages   the same
///     Attach              -> Attached                     a new session of a client without gRPC
///     Attest, page by page -> Attested                    a resumed session
///
/// One thread, and no other one on the channel. `watch` may be null.
class Handshake {
 public:
  Handshake(wire::FrameChannel& channel, Watch* watch) : channel_(channel), watch_(watch) {}

  /// Says `hello`; `resumes`: for the session of `member`. Without it `member` becomes the new session's.
  Reply Greet(wire::Hello hello, bool resumes, Membership& member, TimePoint deadline);
  /// The descriptor of the stats page, between Greet and TakePages.
  int stats_fd() const { return received_.fds[0].get(); }
  /// Maps the pages that came with Welcome, or puts them where the session's earlier pages are. Errors as
  /// SharedPages; INVALID_ARGUMENT also where they are no pages of a session.
  PlainStatus TakePages(MapMemory map, bool resumes, Membership& member);
  Reply Attach(std::uint64_t request_id, const std::string& lease, wire::Lease& attached, TimePoint deadline);
  /// A page of chunks; kStrange: the daemon did not answer with Attested.
  Reply Attest(wire::Attest page, std::span<const int> fds, TimePoint deadline);

 private:
  Reply Ask(const wire::Frame& frame, std::span<const int> fds, TimePoint deadline);

  wire::FrameChannel& channel_;
  Watch* const watch_;
  wire::ReceivedFrame received_;  // the last answer
};

}  // namespace lgpu::link

#endif  // LGPU_CLIENT_LINK_HANDSHAKE_H_
