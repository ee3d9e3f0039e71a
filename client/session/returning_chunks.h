#ifndef LGPU_CLIENT_SESSION_RETURNING_CHUNKS_H_
#define LGPU_CLIENT_SESSION_RETURNING_CHUNKS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "lgpu/region_source.h"
#include "proto/wire/session_messages.h"

namespace lgpu {

/// ReturningChunks are the chunks of a session that are on their way back to the daemon. A chunk that is on
/// its way has one state:
///
///     holder gives it up -> kLeaving -> (a Return is sent and answered) -> gone
///     kLeaving, and the daemon is lost and takes the session up again:
///         before its attestation -> kUnattested -> (Return, which sends nothing) -> gone
///         after its attestation  -> stays kLeaving, the new daemon gets the Return
///     Return while the daemon is away -> kOwed   -> sent to the next daemon, if that one was told of it
///     Return while it does not read   -> kUnsent -> sent when it reads
///     grant of a request that was given up -> kUnwanted -> acknowledged and sent
///
/// An attestation leaves out all of them. kUnattested stays until the chunk's own Return: a second one to the
/// daemon that was not told of the chunk would break the session. Not thread-safe.
class ReturningChunks {
 public:
  enum class State { kLeaving, kUnattested, kOwed, kUnsent, kUnwanted };
  /// A Batch is what one ReturnRequest gives back, after an Ack of `grant` where that is not 0.
  struct Batch {
    std::uint64_t grant = 0;
    std::uint64_t device = 0;
    std::vector<std::uint64_t> chunks;
  };

  /// The chunks' holder gives them up.
  void Leave(std::span<const ChunkId> chunks);
  /// Their Return is over, or their holder keeps them after all. Those that are owed or unsent stay.
  void Settle(std::span<const ChunkId> chunks);
  /// The members of `chunks` that the daemon is to be told of now. None while it is away: they are owed.
  std::vector<ChunkId> StillToReturn(std::uint64_t device, std::span<const ChunkId> chunks, bool is_away);
  /// The batch could not be sent: it is kUnsent.
  void Postpone(const Batch& batch);
  /// A grant whose request was given up.
  void AddUnwanted(const wire::Grant& grant);
  static Batch BatchOf(const wire::Grant& grant);

  /// The chunks of this state, which leave the table.
  std::vector<Batch> Take(State state);
  bool Contains(std::uint64_t chunk) const { return rows_.contains(chunk); }
  /// The chunks in kUnattested.
  std::set<std::uint64_t> Unattested() const;
  /// None of the chunks is attested: that gives back those that are leaving or owed.
  void LeaveOutOfAttestation();
  /// The next daemon has the session: unsent and unwanted chunks were not attested to it. The owed ones,
  /// which were.
  std::vector<Batch> GoToNextDaemon();

 private:
  struct Row {
    State state = State::kLeaving;
    std::uint64_t device = 0;
    std::uint64_t grant = 0;  // not acknowledged yet; 0: none
  };
  void Put(const Batch& batch, State state);

  std::map<std::uint64_t, Row> rows_;  // by the chunk's id
  bool has_unwanted_ = false;          // a look at each row is spared where there are none
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_RETURNING_CHUNKS_H_
