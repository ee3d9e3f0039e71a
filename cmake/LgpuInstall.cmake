# What `cmake --install` puts where. Included at the end of the root CMakeLists.txt.

include(CMakePackageConfigHelpers)

# The headers of the layers that a program sees; nothing else is public.
foreach(layer allocator kernels client)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            FILES_MATCHING PATTERN "*.h")
  endif()
endforeach()

if(TARGET lgpu)
  install(TARGETS lgpu EXPORT lgpuTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lgpu)
  install(EXPORT lgpuTargets NAMESPACE lgpu:: DESTINATION ${package_dir})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lgpuConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake ${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
          DESTINATION ${package_dir})
  # The file finds its prefix from its own place, so that an installed tree can be moved.
  file(RELATIVE_PATH LGPU_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/lgpu.pc.in ${PROJECT_BINARY_DIR}/package/lgpu.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

if(TARGET lgpud)
  install(TARGETS lgpud RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.service ${PROJECT_SOURCE_DIR}/packaging/lgpud.socket
        DESTINATION lib/systemd/system)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/prometheus/lgpu-alerts.yml ${PROJECT_SOURCE_DIR}/packaging/grafana/lgpu.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpu.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.toml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
