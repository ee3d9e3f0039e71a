#include "client/link/requests.h"

namespace lgpu::link {

std::uint64_t RequestOf(const wire::Frame& frame) {
  if (const auto* const grant = frame.Get<wire::Grant>()) return grant->request_id;
  if (const auto* const refused = frame.Get<wire::GrowRefused>()) return refused->request_id;
  if (const auto* const reply = frame.Get<wire::ReturnReply>()) return reply->request_id;
  if (const auto* const closed = frame.Get<wire::Closed>()) return closed->request_id;
  if (const auto* const attached = frame.Get<wire::Attached>()) return attached->request_id;
  if (const auto* const charged = frame.Get<wire::Charged>()) return charged->request_id;
  return 0;
}

}  // namespace lgpu::link
