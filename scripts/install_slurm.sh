#!/bin/sh
# Installs what `make test-slurm` needs, from the distribution's packages, where it is missing: Slurm with accounting,
# munge, MariaDB. The tests configure and start their own in a temporary folder; /etc/slurm is not looked at.
set -eu
fail() {
    echo "test-slurm: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "the daemons of Slurm's nodes run as root: use root, or a container in which you are root."
missing=
for program in slurmctld slurmd slurmdbd munged mariadbd sbatch sacct unshare setpriv; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || fail "no$missing here, and no apt-get: install Slurm with slurmdbd, munge and MariaDB."
echo "test-slurm: installing Slurm, munge and MariaDB; missing:$missing"
apt-get -qq update || fail "apt-get update failed: see above."
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
    slurm-wlm slurmdbd munge mariadb-server util-linux >/dev/null || fail "apt-get install failed: see above."
