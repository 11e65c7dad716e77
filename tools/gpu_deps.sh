#!/usr/bin/env bash
# Carries gptrain's build dependencies to a machine without a network that has only nvcc, a compiler, Python, meson and
# ninja: Debian packages of this machine's release, reduced to the files that are used, and the headers of
# cudnn-frontend. CUDA's libraries are not carried: see tools/find_cuda_libraries.py.
#   tools/gpu_deps.sh collect           here: writes .gpu-deps/root.tar.gz (git ignores it), about 13 MB
#   source tools/gpu_deps.sh install    there, in bash: unpacks it into ${TMPDIR:-/tmp}/gptrain-gpu-deps, never over the
#                                       system, and adds it to the paths of compiler, linker, loader and pkg-config
# tools/gpu_check.sh installs by itself if the file exists.

# Build dependencies as packages of Debian and Ubuntu, and those of their dependencies that are carried as well.
gpu_deps_packages=(libfmt-dev libdnnl-dev nlohmann-json3-dev libcli11-dev libsodium-dev catch2 libboost-context-dev
  pkgconf)
gpu_deps_carried='^(lib(fmt|dnnl|boost-context|boost1|cli11|sodium|pkgconf)|nlohmann-json|catch2|pkgconf|ocl-icd-libopencl)'

gpu_deps_collect() (
  set -euo pipefail
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  frontend=$(bash -c 'source tools/common.sh && cudnn_frontend_wheel')
  mkdir -p .gpu-deps
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  mkdir "$scratch/all" "$scratch/root"
  mapfile -t packages < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances "${gpu_deps_packages[@]}" | grep -E "$gpu_deps_carried" | sort -u)
  for package in "${packages[@]}"; do
    (cd "$scratch" && apt-get download -q "$package" >/dev/null 2>&1) || echo "not fetched: $package" >&2
  done
  for file in "$scratch"/*.deb; do dpkg -x "$file" "$scratch/all"; done
  python3 -m pip download -q --no-deps --dest "$scratch" "$frontend"
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' \
    "$scratch"/nvidia_cudnn_frontend*.whl "$scratch/wheel"
  # Carries of Boost only the headers that fibers need; of other packages everything except documentation and static
  # libraries that are not linked.
  cd "$scratch"
  echo '#include <boost/context/fiber.hpp>' | CPATH=$PWD/all/usr/include g++ -std=c++20 -M -x c++ - |
    grep -oE '/all/usr/include/boost/[^ ]+' | sed 's#^/all/##' >headers
  find all/usr/bin all/usr/lib all/usr/include all/usr/share/pkgconfig \( -path '*/include/boost' -o -name '*.a' \
    ! -name libsodium.a -o -path '*/lib/cmake' \) -prune -o \( -type f -o -type l \) -print 2>/dev/null |
    sed 's#^all/##' >>headers
  tar -C all -cf - -T headers | tar -C root -xf -
  cp -r "$(dirname "$(find wheel -name cudnn_frontend.h | head -n 1)")"/. root/usr/include/
  tar -C root -czf root.tar.gz .
  cd "$OLDPWD"
  mv "$scratch/root.tar.gz" .gpu-deps/root.tar.gz
  printf 'carried: %s\n' "${packages[*]} $frontend"
  du -h .gpu-deps/root.tar.gz
)

gpu_deps_install() {
  local root=${TMPDIR:-/tmp}/gptrain-gpu-deps library
  mkdir -p "$root"
  tar -C "$root" -xzf .gpu-deps/root.tar.gz || return 1
  library=$(dirname "$(find "$root/usr/lib" -name 'libfmt.so*' | head -n 1)")
  export PATH=$PATH:$root/usr/bin
  export CPATH=$root/usr/include${CPATH:+:$CPATH}
  export LIBRARY_PATH=$library${LIBRARY_PATH:+:$LIBRARY_PATH}
  export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG_PATH=$library/pkgconfig:$root/usr/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
}

case "${1:-}" in
  collect) gpu_deps_collect ;;
  install) gpu_deps_install ;;
  *) sed -n '2,9p' "${BASH_SOURCE[0]}" ;;
esac
