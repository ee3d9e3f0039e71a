#include "daemon/http/http_api.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/http/http_answers.h"
#include "daemon/http/http_connections.h"
#include "daemon/http/memory_map.h"
#include "daemon/leases/users.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::daemon {
namespace {

using nlohmann::json;

constexpr std::size_t kMostEvents = 1000;
// Of one message of a live stream; the next one has the others.
constexpr std::size_t kMostEventsOfAMessage = 200;
// A program that does not answer keeps one thread of its own user's so long.
constexpr std::chrono::milliseconds kMapWait{2000};
constexpr std::uint64_t kFewestCells = 10, kMostCells = 10'000;

absl::StatusOr<std::uint64_t> Number(const httplib::Request& request, const char* name,
                                     std::uint64_t otherwise) {
  if (!request.has_param(name)) return otherwise;
  std::uint64_t number = 0;
  if (absl::SimpleAtoi(request.get_param_value(name), &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("the parameter ", name, " is not a whole number"));
}

json CardsToJson(const v1::StatsSnapshot& snapshot) {
  json cards = json::array();
  for (const v1::CardStats& card : snapshot.cards()) cards.push_back(ToJson(card));
  return {{"schema", "lgpu.cards/v1"}, {"cards", std::move(cards)}};
}

json LeasesToJson(const v1::StatsSnapshot& snapshot) {
  json leases = json::array();
  for (const v1::LeaseStats& lease : snapshot.leases()) leases.push_back(ToJson(lease));
  return {{"schema", "lgpu.leases/v1"}, {"leases", std::move(leases)}};
}

json EventsToJson(const EventLog::Batch& batch) {
  json events = json::array();
  for (const v1::Event& event : batch.events) events.push_back(ToJson(event));
  return {{"schema", "lgpu.events/v1"},
          {"last_sequence", batch.last_sequence},
          {"lost", batch.lost},
          {"events", std::move(events)}};
}

std::string HostName() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpApi>> HttpApi::Start(const Services& services) {
  std::unique_ptr<HttpApi> api(new HttpApi(services));
  LiveStreams::Source source;
  source.tick = [self = api.get()] { self->history_.Add(self->services_.stats.Snapshot(Caller{})); };
  source.figures = [self = api.get()](const Viewer& viewer) {
    return absl::StrCat("event: stats\ndata: ", JsonLine(ToJson(self->SnapshotFor(viewer))), "\n");
  };
  source.events = [self = api.get()](const Viewer& viewer, LiveStreams::Position& position) {
    return self->EventsSince(viewer, position);
  };
  LGPU_ASSIGN_OR_RETURN(api->streams_, LiveStreams::Start(std::move(source), {}));
  return api;
}

void HttpApi::AddTo(httplib::Server& server) {
  const auto of_snapshot = [this, &server](const char* path, json (*make)(const v1::StatsSnapshot&)) {
    server.Get(path, [this, make](const auto&, auto& response) {
      Answer(response, 200, make(SnapshotFor(CurrentViewer())));
    });
  };
  of_snapshot("/api/v1/stats", [](const v1::StatsSnapshot& snapshot) { return ToJson(snapshot); });
  of_snapshot("/api/v1/snapshot", [](const v1::StatsSnapshot& snapshot) { return ToJson(snapshot); });
  of_snapshot("/api/v1/cards", CardsToJson);
  of_snapshot("/api/v1/leases", LeasesToJson);
  server.Get("/api/v1/version", [this](const auto&, auto& response) { Version(response); });
  server.Get("/api/v1/queue", [this](const auto&, auto& response) { Queue(response); });
  server.Get("/api/v1/events", [this](const auto& request, auto& response) { Events(request, response); });
  server.Get("/api/v1/placements",
             [this](const auto& request, auto& response) { Placements(request, response); });
  server.Get("/api/v1/timeline",
             [this](const auto& request, auto& response) { Timeline(request, response); });
  server.Get("/api/v1/map", [this](const auto& request, auto& response) { Map(request, response); });
  server.Get("/api/v1/stream", [this](const auto& request, auto& response) { Stream(request, response); });
}

Viewer HttpApi::CurrentViewer() const { return ViewerOf(BoundedServer::CurrentUser(), services_.sees_all); }

v1::StatsSnapshot HttpApi::SnapshotFor(const Viewer& viewer) const {
  v1::StatsSnapshot snapshot = services_.stats.Snapshot(viewer.caller);
  HideOthers(viewer, services_.stats.user_names(), snapshot);
  return snapshot;
}

std::string HttpApi::EventsSince(const Viewer& viewer, LiveStreams::Position& position) const {
  const EventLog::Batch batch =
      services_.events.Read(position.last_event, viewer.caller.uid, kMostEventsOfAMessage);
  position.last_event = batch.last_sequence;
  if (batch.events.empty()) return "";
  return absl::StrCat("event: events\ndata: ", JsonLine(EventsToJson(batch)), "\n");
}

void HttpApi::Version(httplib::Response& response) const {
  const Viewer viewer = CurrentViewer();
  json viewed_by = {{"sees_all", viewer.sees_names}};
  if (viewer.is_known) {
    viewed_by["uid"] = static_cast<std::uint32_t>(BoundedServer::CurrentUser());
    viewed_by["user"] =
        services_.stats.user_names().NameOf(static_cast<std::uint32_t>(BoundedServer::CurrentUser()));
  }
  Answer(response, 200,
         {{"schema", "lgpu.version/v1"},
          {"version", LGPU_VERSION},
          {"backend", services_.backend},
          {"host", HostName()},
          {"viewer", std::move(viewed_by)}});
}

void HttpApi::Queue(httplib::Response& response) const {
  json requests = json::array();
  const v1::StatsSnapshot snapshot = SnapshotFor(CurrentViewer());
  for (const v1::CardStats& card : snapshot.cards()) {
    const json its = ToJson(card);
    for (json request : its["queue"]) {
      request["gpu"] = card.index();
      requests.push_back(std::move(request));
    }
  }
  Answer(response, 200, {{"schema", "lgpu.queue/v1"}, {"requests", std::move(requests)}});
}

void HttpApi::Events(const httplib::Request& request, httplib::Response& response) const {
  const absl::StatusOr<std::uint64_t> after = Number(request, "after", 0);
  if (!after.ok()) return Fail(response, after.status());
  Answer(response, 200, EventsToJson(services_.events.Read(*after, CurrentViewer().caller.uid, kMostEvents)));
}

void HttpApi::Placements(const httplib::Request& request, httplib::Response& response) const {
  if (!request.has_param("lease")) {
    return Fail(response, absl::InvalidArgumentError("of which lease? /api/v1/placements?lease=NAME"));
  }
  const auto placements =
      services_.leases.FindPlacements(CurrentViewer().caller, request.get_param_value("lease"));
  if (!placements.ok()) return Fail(response, placements.status());
  const absl::StatusOr<std::uint64_t> records = Number(request, "records", 100);
  if (!records.ok()) return Fail(response, records.status());
  v1::PlacementReport report = placements->log->Report(*records);
  report.set_lease_id(placements->id);
  report.set_lease_name(placements->name);
  Answer(response, 200, ToJson(report));
}

void HttpApi::Timeline(const httplib::Request& request, httplib::Response& response) const {
  const absl::StatusOr<std::uint64_t> seconds = Number(request, "seconds", 600);
  const absl::StatusOr<std::uint64_t> width = Number(request, "width", 400);
  const absl::StatusOr<std::uint64_t> card = Number(request, "gpu", 0);
  for (const auto* const number : {&seconds, &width, &card}) {
    if (!number->ok()) return Fail(response, number->status());
  }
  const History::Window window{.seconds = static_cast<double>(*seconds),
                               .width = static_cast<std::size_t>(*width)};
  const Viewer viewer = CurrentViewer();
  if (request.has_param("lease")) {
    return Answer(response, 200, history_.OfLease(viewer, request.get_param_value("lease"), window));
  }
  if (*card > std::numeric_limits<std::uint32_t>::max()) {
    return Fail(response, absl::InvalidArgumentError("the parameter gpu is the index of no GPU"));
  }
  Answer(response, 200, history_.OfCard(viewer, static_cast<std::uint32_t>(*card), window));
}

void HttpApi::Map(const httplib::Request& request, httplib::Response& response) const {
  if (!request.has_param("lease")) {
    return Fail(response, absl::InvalidArgumentError("of which lease? /api/v1/map?lease=ID&device=0"));
  }
  const absl::StatusOr<std::uint64_t> device = Number(request, "device", 0);
  const absl::StatusOr<std::uint64_t> width = Number(request, "width", 1000);
  for (const auto* const number : {&device, &width}) {
    if (!number->ok()) return Fail(response, number->status());
  }
  if (*device > 1'000) return Fail(response, absl::NotFoundError("no lease has so many logical devices"));
  const auto cells = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(*width, kFewestCells, kMostCells));
  const absl::StatusOr<std::unique_ptr<SnapshotCall>> call =
      services_.snapshots.Start(CurrentViewer().caller, {.lease = request.get_param_value("lease"),
                                                         .device = static_cast<int>(*device),
                                                         .session = {},
                                                         .wait = kMapWait,
                                                         .cells = cells});
  if (!call.ok()) return Fail(response, call.status());
  const std::shared_ptr<const LeaseBlocks> blocks = (*call)->Wait();
  // Of the programs of the lease, the one with the most blocks.
  const DeviceBlocks* most = nullptr;
  absl::Status why = absl::NotFoundError("no program is attached to this lease, so there are no blocks");
  for (const SessionBlocks& session : blocks->sessions) {
    if (!session.status.ok()) why = session.status;
    for (const DeviceBlocks& told : session.devices) {
      if (!told.status.ok()) {
        why = told.status;
      } else if (most == nullptr || LiveBlocksOf(told.map) > LiveBlocksOf(most->map)) {
        most = &told;
      }
    }
  }
  if (most == nullptr) return Fail(response, why);
  json map = MapOf(*most);
  map["lease"] = {{"id", blocks->lease_id}, {"name", blocks->lease_name}};
  map["programs"] = blocks->sessions.size();
  Answer(response, 200, map);
}

void HttpApi::Stream(const httplib::Request& request, httplib::Response& response) {
  const absl::StatusOr<std::uint64_t> after = Number(request, "after", 0);
  if (!after.ok()) return Fail(response, after.status());
  if (request.method != "GET") return;  // HEAD: the header alone
  const std::uint64_t user = BoundedServer::CurrentUser();
  if (!streams_->TakePlace(user)) {
    response.set_header("Retry-After", "5");
    return Fail(response, absl::ResourceExhaustedError(
                              "your user has too many live pages open; close some and try again"));
  }
  BoundedServer::HandOver([this, user, viewer = CurrentViewer(), last = *after](UniqueFd socket) {
    streams_->Serve(std::move(socket), user, viewer, {.last_event = last});
  });
}

}  // namespace lgpu::daemon
