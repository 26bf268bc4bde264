"""What a namespace counted, from the two files of /proc."""

from capsule_installer.guard.counters import Counters, Traffic, parse_counters, parse_traffic

SNMP = """\
Ip: Forwarding OutRequests OutNoRoutes
Ip: 2 10 3
Tcp: RtoMin ActiveOpens
Tcp: 200 4
Udp: InDatagrams NoPorts OutDatagrams
Udp: 9 1 6
"""
SNMP6 = (
    "Ip6OutNoRoutes                  \t2\nUdp6NoPorts  \t5\nUdp6OutDatagrams 1\nIcmp6InMsgs\t0\n"
)


def test_tries_are_read_by_name():
    assert parse_counters(SNMP, SNMP6) == Counters(
        no_route=3, no_route6=2, tcp_opens=4, udp_no_port=1, udp6_no_port=5
    )


def test_only_what_came_since_is_told():
    base = parse_counters(SNMP, SNMP6)
    assert base.since(base) == []
    later = Counters(no_route=5, no_route6=2, tcp_opens=5, udp_no_port=1, udp6_no_port=5)
    assert later.since(base) == ["2 tries without a route", "1 TCP connects"]


def test_a_kernel_without_ipv6_counts_none_of_it():
    assert parse_counters(SNMP, "").no_route6 == 0


def test_what_the_host_sent_is_of_both_kinds_of_addresses():
    sent = parse_traffic(SNMP, SNMP6)
    assert sent == Traffic(tcp_opens=4, datagrams=7)
    assert sent.since(Traffic(tcp_opens=4, datagrams=5)) == (
        "on the whole host: 0 TCP connects, 2 UDP datagrams"
    )
