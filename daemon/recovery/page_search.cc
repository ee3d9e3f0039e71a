#include "daemon/recovery/page_search.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/process.h"

namespace lgpu::daemon {
namespace {

// Calls `visit` with each entry: those behind the key `last` first.
template <typename Map, typename Key, typename Visit>
void VisitAfter(Map& map, const Key& last, const Visit& visit) {
  const auto first = map.upper_bound(last);
  std::for_each(first, map.end(), visit);
  std::for_each(map.begin(), first, visit);
}

}  // namespace

std::vector<PageSearch::Reading> PageSearch::InTurn(
    const std::vector<std::shared_ptr<SessionState>>& sessions) const {
  std::map<std::uint32_t, std::map<ProcessId, Group>> users;
  for (const std::shared_ptr<SessionState>& session : sessions) {
    const Process& process = session->process();
    users[session->uid()][{process.pid, process.start_time}].push_back(session);
  }
  std::vector<std::vector<Reading>> rounds;
  VisitAfter(users, last_user_, [&](auto& user) {
    const std::uint32_t uid = user.first;
    const auto last = last_processes_.find(uid);
    std::size_t round = 0;
    VisitAfter(user.second, last == last_processes_.end() ? ProcessId() : last->second, [&](auto& process) {
      if (rounds.size() == round) rounds.emplace_back();
      rounds[round++].push_back(
          {.uid = uid, .process = process.first, .sessions = std::move(process.second)});
    });
  });
  std::vector<Reading> readings;
  for (std::vector<Reading>& round : rounds) {
    std::move(round.begin(), round.end(), std::back_inserter(readings));
  }
  return readings;
}

void PageSearch::Read(const Reading& reading, std::map<SessionId, bool>& maps) {
  const std::optional<std::set<std::uint64_t>> mapped = MappedFiles(reading.process.first, kClientPageFile);
  if (!mapped) return;
  for (const std::shared_ptr<SessionState>& session : reading.sessions) {
    if (session->process().IsGone()) return;  // the pid was its own only while it lived
    maps.emplace(session->id(), MapsOneOf(session->pages(), *mapped));
  }
}

std::map<SessionId, bool> PageSearch::Look(const std::vector<std::shared_ptr<SessionState>>& sessions) {
  const Clock::time_point start = Clock::now();
  std::map<SessionId, bool> maps;
  if (sessions.empty() || start < next_look_) return maps;
  const std::vector<Reading> readings = InTurn(sessions);
  // Users without such sessions are forgotten.
  std::map<std::uint32_t, ProcessId> last_processes;
  for (const Reading& reading : readings) {
    if (const auto last = last_processes_.find(reading.uid); last != last_processes_.end()) {
      last_processes.insert(*last);
    }
  }
  Clock::time_point now = start;
  for (const Reading& reading : readings) {
    Read(reading, maps);
    last_user_ = reading.uid;
    last_processes.insert_or_assign(reading.uid, reading.process);
    now = Clock::now();
    if (now - start >= options_.budget) break;
  }
  last_processes_ = std::move(last_processes);
  next_look_ = now + options_.pause * (now - start);
  return maps;
}

}  // namespace lgpu::daemon
