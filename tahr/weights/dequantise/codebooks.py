"""The codebooks of the IQ1, IQ2 and IQ3 formats.

A codeword is a row of 4 or 8 values. A codebook holds some of the rows that can be spelt with its alphabet, and a
block stores indices into it. Read as numbers whose first digit is the lowest, the codewords are in ascending order,
so a codebook is only a set: one bit for each possible row, kept here compressed.
"""

import base64
import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Codebook:
    """Which rows of `width` values out of `alphabet` are codewords."""

    alphabet: tuple[int, ...]
    width: int
    packed: str


@cache
def codewords(name: str) -> NDArray[np.int8]:
    """The codewords of a codebook as `[n_codewords, width]`, decoded on first use."""
    book = CODEBOOKS[name]
    members = np.frombuffer(zlib.decompress(base64.b85decode(book.packed)), np.uint8)
    numbers = np.flatnonzero(np.unpackbits(members, bitorder="little"))
    digits = numbers[:, None] // len(book.alphabet) ** np.arange(book.width) % len(book.alphabet)
    words: NDArray[np.int8] = np.array(book.alphabet, np.int8)[digits]
    return words


CODEBOOKS = {
    "IQ1_S": Codebook(
        (-1, 0, 1),
        8,
        "cwQ}1K}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umMk2dT8mb2WdTox*h^v8"
        "VtnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;QqccSPG~@n#@N5uBY$^gNY22s7}?HYgoxmY#"
        "Y+!Ajh1yxWA4l1OzVO1-XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-$Ub(LsHW&@kYN"
        "cQ%|}dP%c;av8KJU^mWiJv*28-WD<$YEG%#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l64F4M"
        "qT|O(RS}O@H(bLXvHn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQrc>Le(m#@Cb_P%)g$;r#{<KcsUbe#9?"
        "p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-z{36HBT$I&mG*v%J#A~V%aSj@pZtCEAg}V1eou`2@uUxU_YQ=)6;l3U7EjmAK"
        "r#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn"
        "$cM#il(dTBx(R&0u-;P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEMlIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&dp"
        "W2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1",
    ),
    "IQ2_XXS": Codebook(
        (8, 25, 43),
        8,
        "c-nPRORmH)2s0AhyHehLh|~jgGxxvB1M=;tgMyR>n;18rzw+T#E3{l705udCVh7x`dP0iY?dM)TJa0e{km~29B(SYy5j~2M4$~7VzOi6=N"
        "CQ&MTQ(MZ<`pdtiBjk|$5GO)w~kLaTBk<32M$)fY6GpE(`&Js0>v|$yxZL%ePpoFFNF54-<U9l&^f8h7QvF$oH9(w<dqs#lA;gp(rB`E)Q"
        "M5*(rkM<qb5vx$rda{P7ht;>+IVM-w|&1U!gXMvq3(a@m@07J(tH=`weS6;jm%Xjp3oavL3-7wW;LW&6oXa=x^9R#$6R7",
    ),
    "IQ2_XS": Codebook(
        (8, 25, 43),
        8,
        "cwSXeS*nFF3_XGLKZ5Qj1^usJ_rH~wsaIbRTQi&?&N=US_2Z&v&T(~Vgy$CR3?d9K9kes7ghtGOc1W|sp4qmYNuX*|UJ}4A1Pd|1+op5@T"
        "4`WxKIjb&c#$MvWE_*%wKcGH+V>XU3{;E9oCydX;;iC?Ickk(hb}-%WRVIO(kWPEVR{YZT{zQn_$tdd&0ePkXp6FvkF*f)9JVNpad?S{in"
        "Ry7VnwYtEHhdHhJd)mdc_jdGZFc+#<mR&C_|T0Q=zp(aarSANsne-e<@d(rB7D`RUN-myrM^=gB^DqCO%Dv3*U0zADdU#zzd`9p_Jp7?rz"
        "{EOmODhM*JBH74$Y3$Z40pbjG;@->%|WWUDP&FDk~A6i)WV65_F5|3Z`e$`2{k?R}fvKTfbINd",
    ),
    "IQ2_S": Codebook(
        (8, 25, 43),
        8,
        "c${rgU5W-F3~NE(E9iYHjPDBe{#V(wI=kPpE5rQ7#3X8F%Z9aF@G^(h-0EI3Em0|W3^QwctZ7zp0a8G#rYWS&oF&YfEj@sgh^u5FBBgC>L"
        "AkBEEtarKv-X}c)kMD5E9g)N*35uFS6j&;COQ!QC2=T0oAzp}=fs8f?3xctXeG?g^dQAA!2(KVP=j1x!<Qgx@l7F)Pu!TMd$m>{ZzEray("
        "N$AzRb24)#*U9zYZZF^+2!@EVQ9?ARiEH!J<ErE8usn4?()-BQhW*1pE<<S|Z6aT82aQO}QP4+el6zUY~*z7~Sl6pK?p!Q_DMIhH4w7?jo"
        "IO9P^#Dw9CRS7mu8OBC|vDii4FoWN_zK9m?6y$}qXC*pyH_2f!)+bXep&HXz~CYasM7Fd3(JhmM~KIbkHJ7yU4;E692~{FNElHOf~Fzm+T"
        "Bn!W(JyjC6",
    ),
    "IQ3_XXS": Codebook(
        (4, 12, 20, 28, 36, 44, 52, 62),
        4,
        "c$`g9F%H5o3_M%0RAmZ7_lgPeigaLyA4Q!IuVCbv_?)J2Rn;aw-<^~BWtxCXwzFx0%xW)eST<YW5KL&L;j#hAAHoX-c)&}FY<X@1m|7IGs"
        "jrX>q7@bAuHrcP3L2_`6x)_>^v5;&o?@Fdagv_Uo9H*utGOGEJ93R6P|L2rgx{U}Y-UnrS3sKYtPIbF!WdDS7|dsT<9UQCqzhJe8+4kK5k"
        "m%XvHjm=J(sMgqk-e3v^zjTJayVggoDWMJzTWE4a0T)3l-9P!ydlNePrBA?Xny*@kmBo4W|8$?wEo20v5Uy_5",
    ),
    "IQ3_S": Codebook(
        (1, 3, 5, 7, 9, 11, 13, 15),
        4,
        "cwRkF!Ab)$5PdUDAe&RNtawe+3U$9Cm3mMwMG${yTPn1@ZSey{D}wz=CsCZkka=(B&6|8ZPwl5O$IIzHc_jI`OX1|u*kta#84~SUX&BVu*"
        "1jX#?7$H4h1Lkb<=H%9#qtoiVS@#of;5rj*ldC}(!7IPYF}j;8Y5Pko#9yc^V7lfX1F%{Su4sP;nuuEd&Qj-%GjWpDLnHm16j~Z5z)!WnJ"
        "fYFE&VH7?!5znmLzIbaSjJML|A*HsuI8^iqEjfs5Tr-EN+5~!aBHhGO<bV30oS3yfdlr27V}VZ*@wb3La&_1Y{MGAQ&b4URX*4v0Z2nwlu"
        "(Vv@J+-5h~f0M^!;rvqoP~HGs7izK~v`5P2?JH1r4sn@W;ab^E{82$RVRggxe3w+p?d_|iWsK2rIlIv{nU{GR`(4g3JQ#wQ>",
    ),
}
