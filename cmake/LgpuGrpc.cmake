# gRPC for what is loaded into other people's processes: Debian's static archives, without OpenSSL and protobuf, so that
# liblgpu needs no shared gRPC. A program that has one of its own (TensorFlow, grpcio) keeps it. abseil stays shared:
# Debian's archives of it are not position-independent, and its names carry an inline namespace.
add_library(lgpu_grpc INTERFACE)
if(LGPU_SANITIZE MATCHES "thread")
  # ThreadSanitizer leaves out libraries that are not instrumented by their names.
  target_link_libraries(lgpu_grpc INTERFACE gRPC::grpc++)
else()
  # What gRPC's own package says that its libraries need, but for those libraries and what these parts of them never use.
  set(grpc_needs)
  foreach(target gRPC::grpc_unsecure gRPC::gpr)
    get_target_property(needs ${target} INTERFACE_LINK_LIBRARIES)
    list(APPEND grpc_needs ${needs})
  endforeach()
  list(FILTER grpc_needs EXCLUDE REGEX "^(gRPC::|re2::)")
  list(REMOVE_DUPLICATES grpc_needs)
  # Targets, so that CMake puts each archive in front of what it needs.
  foreach(name address_sorting gpr upb grpc_unsecure grpc++_unsecure)
    find_library(LGPU_ARCHIVE_${name} lib${name}.a REQUIRED)
    add_library(lgpu_archive_${name} STATIC IMPORTED)
    set_target_properties(lgpu_archive_${name} PROPERTIES IMPORTED_LOCATION ${LGPU_ARCHIVE_${name}})
    target_link_libraries(lgpu_archive_${name} INTERFACE ${grpc_archives} ${grpc_needs})
    list(PREPEND grpc_archives lgpu_archive_${name})
  endforeach()
  target_link_libraries(lgpu_grpc INTERFACE ${grpc_archives})
endif()
