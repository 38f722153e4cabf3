#!/usr/bin/env bash
# Make the node image that `kind create cluster --image` boots: a Debian with systemd and
# containerd, the Kubernetes binaries, and a tar of the control plane's own images.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
docker image inspect "$NODE_IMAGE" >/dev/null 2>&1 && exit 0 # after a change of node/ or src/: docker rmi it
img="$QUIRE_K8S_CACHE/img"; mkdir -p "$img"
export DOCKER_BUILDKIT=0
build() { # tag, context directory
  docker build --network none -t "$1" "$2" >"$img/build.log" 2>&1 || { tail -20 "$img/build.log" >&2; exit 1; }
}

# --- the root file system -------------------------------------------------------------------
base_pkgs=systemd,systemd-sysv,dbus,containerd,runc,containernetworking-plugins,iptables,ipset,nftables,\
conntrack,socat,ethtool,iproute2,mount,util-linux,procps,kmod,jq,ca-certificates,busybox-static,\
hostname,iputils-ping,xfsprogs
if [ ! -s "$img/base-2.tar" ]; then
  log "root file system"
  mmdebstrap --quiet --variant=minbase --include="$base_pkgs" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$img/tmp-base.tar"
  mv "$img/tmp-base.tar" "$img/base-2.tar"
fi
docker image inspect local/node-base:2 >/dev/null 2>&1 || docker import "$img/base-2.tar" local/node-base:2 >/dev/null

# --- the control plane's images, under the names kubeadm asks for ----------------------------
declare -A name
while read -r ref; do n=${ref##*/}; name[${n%%:*}]=$ref; done \
  < <("$K8S_BIN/kubeadm" config images list --kubernetes-version "$KUBE_VERSION")
log "images: ${name[*]}"
one() { # image key, binary, extra Dockerfile lines
  local ctx="$img/ctx-$1"; rm -rf "$ctx"; mkdir -p "$ctx"; cp "$K8S_BIN/$2" "$ctx/$2"
  printf 'FROM scratch\nENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n%b' "$3" > "$ctx/Dockerfile"
  build "${name[$1]}" "$ctx"
}
for c in kube-apiserver kube-controller-manager kube-scheduler etcd; do
  one $c $c "COPY $c /usr/local/bin/$c\n"
done
one coredns coredns 'COPY coredns /coredns\nENTRYPOINT ["/coredns"]\n'
one pause pause 'COPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
# kube-proxy and kube-router need iptables, nft and ipset: take those programs and their libraries out of the base.
name[kube-router]=local/kube-router:$KUBE_ROUTER_VERSION
for c in kube-proxy kube-router; do
ctx="$img/ctx-$c"; rm -rf "$ctx"; mkdir -p "$ctx"; cp "$K8S_BIN/$c" "$ctx/"
cat > "$ctx/collect" <<'SH'
set -eu
mkdir -p /out/usr/sbin /out/usr/bin /out/usr/lib /out/tmp /out/run /out/etc
ln -s usr/lib /out/lib; ln -s usr/lib64 /out/lib64; ln -s usr/sbin /out/sbin; ln -s usr/bin /out/bin
progs="/usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/ipset /usr/sbin/conntrack /usr/bin/kmod"
mods=$(ls /usr/lib/x86_64-linux-gnu/xtables/*.so)
libs=$(ldd $progs $mods | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | sort -u)
for f in $progs $mods; do mkdir -p "/out$(dirname $f)"; cp -L "$f" "/out$f"; done
for f in $libs; do case $f in /usr/*) d=$f;; *) d=/usr$f;; esac
  mkdir -p "/out$(dirname $d)"; cp -L "$f" "/out$d"; done
for a in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -s xtables-nft-multi "/out/usr/sbin/$a"; done
ln -s ../bin/kmod /out/usr/sbin/modprobe
SH
cat > "$ctx/Dockerfile" <<EOD
FROM local/node-base:2 AS b
COPY collect /collect
RUN sh /collect
FROM scratch
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY --from=b /out /
COPY $c /usr/local/bin/$c
EOD
build "${name[$c]}" "$ctx"
done
log "saving them"
docker save -o "$img/node.tar" "${name[pause]}" "${name[kube-proxy]}" "${name[kube-router]}" "${name[coredns]}"
docker save -o "$img/control-plane.tar" "${name[kube-apiserver]}" "${name[kube-controller-manager]}" \
  "${name[kube-scheduler]}" "${name[etcd]}"

# --- the node ---------------------------------------------------------------------------------
ctx="$img/ctx-node"; rm -rf "$ctx"; mkdir -p "$ctx/bin"; cp "$here"/node/* "$ctx/"
for b in kubelet kubeadm kubectl; do ln "$K8S_BIN/$b" "$ctx/bin/$b" 2>/dev/null || cp "$K8S_BIN/$b" "$ctx/bin/$b"; done
for b in e2e-runc node-agent crictl; do cp "$K8S_BIN/$b" "$ctx/$b"; done
mkdir "$ctx/images"; mv "$img/node.tar" "$img/control-plane.tar" "$ctx/images/"
# Without CAP_SYS_RESOURCE nothing may lower oom_score_adj; containerd has a setting for that.
if [ $(( 0x$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status) >> 24 & 1 )) = 1 ]; then r=false; else r=true; fi
sed -i "s#@SANDBOX@#${name[pause]}#; s#@RESTRICT_OOM@#$r#" "$ctx/containerd.toml"
sed -i "s#@KUBE_ROUTER@#${name[kube-router]}#" "$ctx/default-cni.yaml"
echo "$KUBE_VERSION" > "$ctx/version"
cat > "$ctx/Dockerfile" <<'EOD'
FROM local/node-base:2
ENV container=docker PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY bin/ /usr/bin/
COPY entrypoint kubelet-cgroups e2e-runc node-agent crictl /usr/local/bin/
COPY containerd.toml /etc/containerd/config.toml
COPY kubelet.service kubelet.slice node-agent.service node-images.service boot-announced.service /etc/systemd/system/
COPY version /kind/version
COPY default-cni.yaml default-storage.yaml /kind/manifests/
COPY images/ /kind/images/
RUN systemctl enable containerd kubelet node-agent node-images boot-announced \
 && systemctl set-default multi-user.target \
 && systemctl mask getty.target console-getty.service systemd-udevd.service systemd-logind.service \
      systemd-remount-fs.service dev-hugepages.mount sys-kernel-config.mount sys-kernel-debug.mount \
      sys-fs-fuse-connections.mount systemd-firstboot.service e2scrub_reap.service \
      systemd-sysctl.service systemd-modules-load.service sys-kernel-tracing.mount dev-mqueue.mount \
      modprobe@configfs.service modprobe@dm_mod.service modprobe@efi_pstore.service \
      modprobe@fuse.service modprobe@loop.service modprobe@drm.service systemd-update-utmp.service \
      systemd-journal-flush.service systemd-sysusers.service systemd-user-sessions.service \
      apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
 && rm -f /etc/cni/net.d/* && mkdir -p /etc/systemd/system.conf.d \
 && printf '[Manager]\nDefaultOOMScoreAdjust=\n' > /etc/systemd/system.conf.d/e2e.conf
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
EOD
log "node image"
build "$NODE_IMAGE" "$ctx"
rm -rf "$img"/ctx-*
log "$(docker image inspect -f '{{.Size}}' "$NODE_IMAGE" | numfmt --to=iec) $NODE_IMAGE"
