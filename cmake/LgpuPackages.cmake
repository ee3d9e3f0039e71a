# `cpack -G DEB`: packages for Debian 12, one for each component of LgpuInstall.cmake.
# `cpack -G TGZ`: programs, library and headers with every shared library that the machine may lack, to be unpacked
# anywhere.

# Of the TGZ. An RPATH, not a RUNPATH: it counts for the libraries of libraries too.
foreach(program lgpud lgpu_cli lgpu_selftest)
  if(TARGET ${program})
    file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_BINDIR} /prefix)
    if(program STREQUAL lgpu_selftest)
      file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBEXECDIR}/lgpu /prefix)
    endif()
    set_target_properties(${program} PROPERTIES
      INSTALL_RPATH "$ORIGIN/${up}${CMAKE_INSTALL_LIBDIR};$ORIGIN/${up}lib/lgpu")
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endif()
endforeach()
if(TARGET lgpu)
  file(RELATIVE_PATH LGPU_BUNDLED /prefix/${CMAKE_INSTALL_LIBDIR} /prefix/lib/lgpu)
  set_target_properties(lgpu PROPERTIES INSTALL_RPATH "$ORIGIN/${LGPU_BUNDLED}")
  target_link_options(lgpu PRIVATE -Wl,--disable-new-dtags)
endif()

# lgpu_static(OUT PACKAGE ...): Debian's sources of what is linked in statically or included: a fix there needs a
# rebuild. A line behind a field's value, because CPack knows no such field.
function(lgpu_static out)
  execute_process(COMMAND dpkg-query -W -f "\${source:Package} (= \${source:Version})\n" ${ARGN}
                  OUTPUT_VARIABLE sources OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE "\n" ", " sources "${sources}")
  set(${out} "\nStatic-Built-Using: ${sources}" PARENT_SCOPE)
endfunction()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME lgpu)
set(CPACK_PACKAGE_VENDOR lgpu)
set(CPACK_PACKAGE_CONTACT "The lgpu project <maintainers@lgpu.invalid>")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL lgpud lgpu liblgpu0 liblgpu-dev lgpu-driver-shim lgpu-doc ${LGPU_PYTHON_PACKAGE})
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/PackageByGenerator.cmake)
set(CPACK_LGPU_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_LGPU_LIBDIR ${CMAKE_INSTALL_LIBDIR})

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SOURCE lgpu)

# lgpu_deb(COMPONENT SECTION SUMMARY TEXT): TEXT in lines of at most 80 characters.
macro(lgpu_deb component section summary text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${text}")
endmacro()
set(about "lgpu turns one GPU into many logical GPUs, each with a hard memory limit.\n")
lgpu_deb(lgpud admin "daemon that shares GPUs as logical GPUs with memory limits"
  "${about}This package has the daemon, its service and its configuration. Users of the\ngroup lgpu may use it.")
lgpu_deb(lgpu utils "run programs on logical GPUs with memory limits"
  "${about}This package has the command lgpu: leases, programs inside them, statistics.")
lgpu_deb(lgpu-driver-shim libs "limits programs that know nothing of logical GPUs"
  "${about}This package has what the command puts in front of NVIDIA's driver. No program\nthat runs without lgpu uses any of it.")
lgpu_deb(liblgpu0 libs "client library of logical GPUs"
  "${about}This package has the shared library that programs use.")
lgpu_deb(liblgpu-dev libdevel "client library of logical GPUs, development files"
  "${about}This package has headers, a CMake package and a pkg-config file.")
lgpu_deb(lgpu-doc doc "documentation and examples of logical GPUs"
  "${about}This package has the pages of the project and programs to start from.")
lgpu_deb(python3-lgpu python "logical GPUs with memory limits from Python"
  "${about}This package has the Python module lgpu: tensors, ops, memory for kernels of\nyour own, DLPack, and adaptors for PyTorch, CuPy, RMM and Numba.")
lgpu_static(in_library libgrpc-dev)
lgpu_static(in_command libgrpc-dev libcli11-dev nlohmann-json3-dev)
lgpu_static(in_shim libc6-dev libstdc++-12-dev nlohmann-json3-dev)
lgpu_static(in_daemon libcli11-dev nlohmann-json3-dev libjs-dygraphs)
# liblgpu opens OpenBLAS at the first MatMul on the CPU.
set(CPACK_DEBIAN_LIBLGPU0_PACKAGE_RECOMMENDS "libopenblas0-pthread${in_library}")
set(CPACK_DEBIAN_LGPU_PACKAGE_RECOMMENDS "libopenblas0-pthread, lgpu-driver-shim${in_command}")
set(CPACK_DEBIAN_LGPU_PACKAGE_SUGGESTS "lgpud, lgpu-doc")
# It needs the C library and the machine's own driver, under a name that lgpu gives it: no package has that file.
set(CPACK_DEBIAN_LGPU-DRIVER-SHIM_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_LGPU-DRIVER-SHIM_PACKAGE_DEPENDS "libc6 (>= 2.28)")
set(CPACK_DEBIAN_LGPU-DRIVER-SHIM_PACKAGE_RECOMMENDS "lgpu${in_shim}")
# The dependency on liblgpu0 is in PackageByGenerator.cmake, which knows the version.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/client)
set(CPACK_DEBIAN_PYTHON3-LGPU_PACKAGE_RECOMMENDS lgpu)
set(CPACK_DEBIAN_PYTHON3-LGPU_PACKAGE_SUGGESTS "lgpud, lgpu-doc")
set(CPACK_DEBIAN_LGPUD_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_LGPUD_PACKAGE_RECOMMENDS "lgpu${in_daemon}")
set(CPACK_DEBIAN_LIBLGPU-DEV_PACKAGE_DEPENDS "liblgpu0, libabsl-dev")
set(CPACK_DEBIAN_LIBLGPU-DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_LGPU-DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_LGPU-DOC_PACKAGE_SHLIBDEPS OFF)
set(deb ${PROJECT_SOURCE_DIR}/packaging/deb)
set(CPACK_DEBIAN_LGPUD_PACKAGE_CONTROL_EXTRA ${deb}/postinst ${deb}/prerm ${deb}/postrm ${deb}/conffiles)
set(CPACK_DEBIAN_PYTHON3-LGPU_PACKAGE_CONTROL_EXTRA ${deb}/python/postinst ${deb}/python/prerm)
# Of this library alone: nobody is to depend on the shim for libcuda.so.1.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/package/shlibs
     CONTENT "liblgpu ${PROJECT_VERSION_MAJOR} liblgpu0 (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBLGPU0_PACKAGE_CONTROL_EXTRA ${deb}/triggers ${PROJECT_BINARY_DIR}/package/shlibs)
include(CPack)
