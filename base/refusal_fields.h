#ifndef LGPU_BASE_REFUSAL_FIELDS_H_
#define LGPU_BASE_REFUSAL_FIELDS_H_

// The fields of lgpu/refusal.h, once: FIELD(member of Refusal, its name elsewhere). The payload of a status,
// JSON, the wire message and the C interface are made from these lists. The names are those of
// lgpu/v1/refusal.proto; JSON has a time in seconds and names it so.

#define LGPU_REFUSAL_HOLDER_FIELDS(FIELD) \
  FIELD(lease, lease)                     \
  FIELD(owner, owner)                     \
  FIELD(pid, pid)                         \
  FIELD(device, device)                   \
  FIELD(held, held_bytes)                 \
  FIELD(guarantee, guarantee_bytes)       \
  FIELD(idle, idle_ms)

#define LGPU_REFUSAL_OWNER_FIELDS(FIELD) \
  FIELD(op, op)                          \
  FIELD(bytes, bytes)                    \
  FIELD(blocks, blocks)

#define LGPU_REFUSAL_WIRE_FIELDS(FIELD)               \
  FIELD(reason, reason)                               \
  FIELD(device, device)                               \
  FIELD(lease, lease)                                 \
  FIELD(what, what)                                   \
  FIELD(asked, asked_bytes)                           \
  FIELD(limit, limit_bytes)                           \
  FIELD(used, used_bytes)                             \
  FIELD(held, held_bytes)                             \
  FIELD(peak_used, peak_used_bytes)                   \
  FIELD(live_blocks, live_blocks)                     \
  FIELD(largest_free_block, largest_free_block_bytes) \
  FIELD(card, card)                                   \
  FIELD(card_total, card_total_bytes)                 \
  FIELD(card_free, card_free_bytes)                   \
  FIELD(coming_back, coming_back_bytes)               \
  FIELD(holders, holders)                             \
  FIELD(waited, waited_ms)                            \
  FIELD(advice, advice)

// Owners are known in the program alone.
#define LGPU_REFUSAL_FIELDS(FIELD) \
  LGPU_REFUSAL_WIRE_FIELDS(FIELD)  \
  FIELD(owners, owners)

#endif  // LGPU_BASE_REFUSAL_FIELDS_H_
