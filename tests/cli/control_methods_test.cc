#include "cli/control_methods.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

namespace lgpu::cli {
namespace {

const google::protobuf::ServiceDescriptor& Service() {
  return *v1::GetVersionRequest::descriptor()->file()->FindServiceByName("Control");
}

template <typename Request, typename Response>
void ExpectMethod(const char* name, bool streams) {
  const google::protobuf::MethodDescriptor* const method = Service().FindMethodByName(name);
  ASSERT_NE(method, nullptr) << name;
  EXPECT_EQ(method->input_type(), Request::descriptor()) << name;
  EXPECT_EQ(method->output_type(), Response::descriptor()) << name;
  EXPECT_EQ(method->server_streaming(), streams) << name;
}
template <typename Request, typename Response>
void Expect(const UnaryMethod<Request, Response>& method) {
  ExpectMethod<Request, Response>(method.name, false);
}
template <typename Request, typename Message>
void Expect(const StreamMethod<Request, Message>& method) {
  ExpectMethod<Request, Message>(method.name, true);
}

TEST(ControlMethodsTest, AreThoseOfTheService) {
  Expect(kGetVersion);
  Expect(kListPhysicalDevices);
  Expect(kCreateLease);
  Expect(kWaitForLease);
  Expect(kAttachLease);
  Expect(kGetLease);
  Expect(kListLeases);
  Expect(kResizeLease);
  Expect(kRemoveLease);
  Expect(kSuspendLease);
  Expect(kResumeLease);
  Expect(kTrimLeases);
  Expect(kOpenLeaseDirectory);
  Expect(kGetStats);
  Expect(kGetMemorySnapshot);
  Expect(kGetPlacements);
  Expect(kWatchPlacements);
  Expect(kWatchEvents);
  Expect(kDiagnose);
  EXPECT_EQ(Service().method_count(), 19)
      << "a new method of the service has no place in cli/control_methods.h";
}

}  // namespace
}  // namespace lgpu::cli
