#ifndef LGPU_TESTS_FUZZ_HOSTILE_CLIENT_H_
#define LGPU_TESTS_FUZZ_HOSTILE_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "lgpu/v1/session.pb.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/memory_plane.h"
#include "tests/support/generated_channel.h"

namespace lgpu::daemon {

/// A HostileClient is the other end of a session: it sends the frames that it is told to, right or wrong, and
/// keeps its granted chunks. Without a connection its frames are dropped.
class HostileClient {
 public:
  enum class State { kOver, kNew, kLive, kAttesting, kClosing };
  struct Held {
    std::uint64_t device = 0;
    std::uint64_t bytes = 0;
    UniqueFd fd;
  };
  using Chunks = std::map<std::uint64_t, Held>;
  using Granted = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // session and chunk
  static constexpr std::uint64_t kShortTimeoutMs = 32;

  /// Notes its granted chunks in `granted`, which is of all clients, for sessions go from one to another.
  explicit HostileClient(Granted& granted) : granted_(&granted) {}

  /// In place of the connection that it has.
  void Connect(MemoryPlane& plane);
  /// Ends the connection without a word.
  void Hang();
  /// The same, and closes its chunks.
  void Drop();

  void SayHello(std::uint32_t version, std::uint32_t oldest, const std::string& command);
  /// Hello in the name of a client's session, this one's own too. `lie`: the field that is wrong; 0: none.
  void Resume(HostileClient& whose, std::uint8_t lie);
  struct Wish {
    std::uint64_t device = 0;
    std::uint64_t at_least = 0;
    std::uint64_t wanted = 0;
    std::uint64_t timeout_ms = 0;
    bool ahead = false;
  };
  void Grow(const Wish& wish);
  /// Says that the last grant came, if one waits for that.
  void Acknowledge();
  /// The same, with the next frame.
  void AcknowledgeLater() { acknowledges_ = grant_; }
  void AcknowledgeWrongly(std::uint64_t grant);
  void Return(std::uint64_t device, InputReader& input);
  void ReturnOne();
  void AnswerTrim(std::uint8_t how);
  void Close();
  /// A page of chunks that it has, or claims to have; with the descriptors of `other`, which may be this
  /// client, where it has none.
  void Attest(std::uint64_t device, InputReader& input, const HostileClient& other);
  void SendPacket(const std::string& bytes, std::size_t fd_count);
  /// Any body, with nothing in it.
  void SendBare(std::uint8_t body);
  /// After a restart: connects, resumes and tells all, truly.
  void ComeBack(MemoryPlane& plane);

  /// Waits until the daemon has handled all that was sent, as its answers show. Aborts where none comes.
  void Settle();

  /// Acknowledges, and waits until all that it asked for was granted or refused, if it has no longer
  /// timeouts.
  void AwaitGrows();

  State state() const { return state_; }
  bool closed() const { return closed_; }
  const std::string& token() const { return token_; }
  const Chunks& chunks() const { return chunks_; }
  SessionId id() const { return SessionId{id_}; }
  /// The sum of its chunks, as far as the daemon knows that too; zero where something is on its way, or no
  /// session is live. Aborts where the memory of one is gone.
  Bytes SurelyHeld() const;

 private:
  struct Returning {
    std::uint64_t request = 0;
    bool is_probe = false;
    std::vector<std::uint64_t> chunks;
  };
  struct Page {
    std::vector<std::uint64_t> chunks;
    bool more = false;
  };

  void Send(v1::Frame frame, const std::vector<int>& fds = {});
  void SendEncoded(const std::string& bytes, const std::vector<int>& fds);
  /// The frame is on its way.
  void Note(const v1::Frame& frame);
  void Receive();
  void Take(GeneratedFrame& received);
  void TakeWelcome(const v1::Welcome& welcome);
  void TakeGrant(GeneratedFrame& received);
  void TakeGrowAnswer(std::uint64_t request);
  void TakeReturned(const v1::ReturnReply& reply);
  void TakeAttested();
  void SendProbe();
  void Over();
  std::uint64_t ChunkFrom(InputReader& input) const;

  Granted* granted_;
  GeneratedChannel channel_;
  State state_ = State::kOver;
  bool closed_ = false;   // the last connection ended with Closed
  bool settled_ = true;   // nothing was said since the last Settle
  int unanswered_ = 0;    // frames since the last answer that shows that all before it were handled
  bool answered_ = true;  // the last probe was
  std::string token_;
  std::uint64_t id_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint64_t grant_ = 0;         // not acknowledged
  std::uint64_t acknowledges_ = 0;  // with the next frame
  std::deque<std::uint64_t> trims_;
  HostileClient* takes_up_ = nullptr;  // the connection first asked for the session of this client
  std::uint64_t takes_up_id_ = 0;
  bool lies_ = false;                   // in that
  std::multiset<std::uint64_t> grows_;  // neither granted nor refused yet
  bool waits_for_ever_ = false;         // as far as a fuzzer can tell
  Chunks chunks_;                       // of this session; of the last one, while there is none
  std::deque<Returning> returning_;     // answered in order
  std::deque<Page> pages_;              // likewise
  Chunks attested_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_TESTS_FUZZ_HOSTILE_CLIENT_H_
