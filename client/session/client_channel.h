#ifndef LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
#define LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_

#include "proto/session_channel.h"

namespace lgpu {

/// A program's end of a session.
using ClientChannel = SessionChannel;
using ClientFrame = ReceivedFrame;

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_CLIENT_CHANNEL_H_
