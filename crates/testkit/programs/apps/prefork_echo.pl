# A prefork echo server in Perl: four children accept on one listener, each reads with sysread and IO::Select.
# The client talks over several connections in turn.
#
# usage: prefork_echo.pl server PORT | client PORT CONNECTIONS ROUNDS
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

sub serve {
    my ($port) = @_;
    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 64, ReuseAddr => 1)
        or die "listen: $!";
    my @children;
    for (1 .. 4) {
        my $child = fork // die "fork: $!";
        if ($child == 0) {
            $SIG{TERM} = sub { exit 0 };
            work($listener);
        }
        push @children, $child;
    }
    $SIG{TERM} = sub { kill TERM => @children };
    for my $child (@children) {
        1 until waitpid($child, 0) == $child;
    }
}

sub work {
    my ($listener) = @_;
    while (1) {
        my $connection = $listener->accept or next;
        my $select = IO::Select->new($connection);
        while ($select->can_read) {
            my $n = sysread $connection, my $data, 65536;
            last unless $n;
            print {$connection} $data;
            $connection->flush;
        }
        close $connection;
    }
}

sub load {
    my ($port, $connections, $rounds) = @_;
    my @open = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or die "connect: $!" } 1 .. $connections;
    for my $round (1 .. $rounds) {
        for my $connection (@open) {
            my $message = "round $round " x (1 + $round * 37 % 500);
            syswrite($connection, $message) == length $message or die "write: $!";
            my $answer = '';
            while (length $answer < length $message) {
                sysread($connection, $answer, length($message) - length $answer, length $answer) or die "read: $!";
            }
            $answer eq $message or die "round $round: the answer differs";
        }
    }
    print "ok ", $connections * $rounds, " rounds\n";
}

my $role = shift;
$role eq 'server' ? serve(@ARGV) : load(@ARGV);
